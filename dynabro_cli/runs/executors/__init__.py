"""Executors: an executor decides where simulations run, and passes their events to the recorder."""
