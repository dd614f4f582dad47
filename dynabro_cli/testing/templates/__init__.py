"""Examples of components, one of each kind, with their tests; ``dynabro new`` copies them, and
docs/extending shows them.
"""
