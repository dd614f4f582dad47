"""Turning a spec into numbers: a generator of events that knows nothing of SQL, the terminal or executors."""

from dynabro_cli.digests import keep_sources

keep_sources()  # before the modules that compute are imported, so that a later edit of them is not taken for what ran
