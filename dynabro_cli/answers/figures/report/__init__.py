"""A report of stored runs: one HTML file that needs nothing else."""
