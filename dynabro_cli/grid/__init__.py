"""Sweeps: their files, the runs they stand for, what these will cost, and what is chosen by them."""
