"""Parts that every floor uses: errors, random streams, the machine, vectors, and how components
are declared.
"""
