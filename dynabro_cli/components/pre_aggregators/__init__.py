"""Pre-aggregators, one file each: [m, d] messages in, [m', d] messages out, before the aggregation
rule.
"""
