"""Searches over specs: the strongest adversary, or the best hyper-parameters, by Optuna, as stored
runs of one scheduler.
"""
