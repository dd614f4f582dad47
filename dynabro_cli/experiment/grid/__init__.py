"""Files of sweeps and searches, and the runs that they describe."""
