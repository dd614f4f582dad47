"""Open a database, SQLite or a server: checked before it is touched, for writing or for reading
only.
"""
