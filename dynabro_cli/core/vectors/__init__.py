"""Means, lengths and inner products of the workers' vectors [m, d]; independent of rules and
attacks.
"""
