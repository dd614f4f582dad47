"""Robust aggregation rules, one file each: [m, d] messages in, [d] out."""
