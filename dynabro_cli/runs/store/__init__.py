"""The results database: tables, the one writer, and the readers. Knows nothing of torch."""
