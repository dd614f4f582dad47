"""Read the database."""
