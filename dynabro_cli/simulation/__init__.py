"""Simulate one run: a generator of events, without SQL, terminal or executors."""

from dynabro_cli.core.registration.digests import keep_sources

# before the computing modules are imported, so that a later edit of a file does not count as the
# code that ran
keep_sources()
