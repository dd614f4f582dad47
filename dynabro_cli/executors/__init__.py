"""Where simulations run: an executor takes runs, and gives their events to the recorder."""
