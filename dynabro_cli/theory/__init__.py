"""Theory that can be run: how bad an input a rule can be given, and how errors fall with T, delta and dynamic rounds."""
