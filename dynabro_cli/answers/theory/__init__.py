"""Measurements of the papers' claims: worst inputs of rules, decrease of errors, and memory of
gradients.
"""
