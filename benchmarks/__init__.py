"""Measurements that anyone can repeat: ``python -m benchmarks NAME``. Each prints a ratio of two sides of one run."""
