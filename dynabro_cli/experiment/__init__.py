"""A run: its fields, their defaults, its key, and the parts that it is built from."""
