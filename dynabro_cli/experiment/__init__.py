"""A run before it is made: its fields, defaults, key and components; and the files of sweeps."""
