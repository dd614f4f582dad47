"""Executors decide where simulations run, and pass their events to the recorder."""
