"""All parts of which a run is made, by kind, and the functions that make them from their text."""
