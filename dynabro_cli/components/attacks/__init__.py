"""Byzantine attacks, one file each: messages of the Byzantine workers in place of their own
vectors.
"""
