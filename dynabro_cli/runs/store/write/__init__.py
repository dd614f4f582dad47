"""Rows are written here."""
