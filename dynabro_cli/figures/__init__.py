"""Figures and tables drawn from the database, one file each, without torch."""
