"""What the papers claim of rules and methods, measured."""
