"""A round of Algorithm 2: Byzantine workers, gradients, the attack on them, the server's answer,
and its record.
"""
