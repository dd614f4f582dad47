"""Care for a database: check, merge, thin, copy, remove; and every file that a command writes."""
