"""Eight questions about a GPU, answered by one command: ``python -m benchmarks gpu --out
FOLDER``.
"""
