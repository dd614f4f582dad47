"""Kernels of aggregators."""
