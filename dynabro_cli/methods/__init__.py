"""Training methods, one file each: what workers send, and what the server makes of the aggregates."""
