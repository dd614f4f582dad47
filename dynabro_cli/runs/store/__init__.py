"""The results database: its tables, one writer, and readers. It does not load torch."""
