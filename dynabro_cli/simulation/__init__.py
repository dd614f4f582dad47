"""Turning a spec into numbers: a generator of events that knows nothing of SQL, the terminal or executors."""
