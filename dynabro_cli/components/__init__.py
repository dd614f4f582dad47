"""Components of a run, a folder for each kind, and functions that make them from their texts."""
