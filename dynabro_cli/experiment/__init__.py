"""A run: its fields, its defaults, its key, and the parts that it is built of."""
