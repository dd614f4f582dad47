"""What every floor uses: errors, limits, random streams, the machine, vectors, and how components are declared."""
