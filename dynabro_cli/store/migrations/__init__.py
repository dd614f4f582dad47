"""Alembic's migrations of the schema: one file a version, each frozen once released."""
