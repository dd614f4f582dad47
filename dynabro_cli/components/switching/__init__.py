"""Identity-switching strategies, one file each: which workers are Byzantine at each tick of the
clock.
"""
