"""Make runs and keep them: processes, searches, the database, and the display of their progress."""
