"""Sweeps and searches: their files, their runs, the forecast of time and space, and the choice of
hyper-parameters.
"""
