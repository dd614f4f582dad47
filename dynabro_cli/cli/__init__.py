"""Commands: each module has the options of a family of commands, calls one function, and prints."""
