"""Statistics of stored runs: cells, intervals, paired tests, rankings, choices and forecasts.

Only this package computes them; figures, reports and commands show them.
"""
