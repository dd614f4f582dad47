"""Distributions of the training set over the workers, one file each."""
