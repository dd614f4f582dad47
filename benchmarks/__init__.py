"""Measurements that anyone can repeat: ``python -m benchmarks NAME``. Both sides run in one go, in turn."""
