"""Code that all folders share: errors, events, random streams, the machine, vectors, and the
registration of components.
"""
