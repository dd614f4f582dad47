"""What the papers claim, measured: how bad an input a rule can be given, how errors fall, how long a gradient is remembered."""
