"""Measurements that anyone can repeat: ``python -m benchmarks NAME``. Both sides run in the same
call, in turn.
"""
