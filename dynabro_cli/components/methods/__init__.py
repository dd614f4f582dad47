"""Training methods, one file each: messages of workers, and the server's use of the aggregates."""
