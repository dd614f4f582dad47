"""Examination of a GPU by one command: right or wrong, fast or slow, many runs at once.

``python -m benchmarks gpu --out FOLDER`` runs the steps of ``steps.STEPS``, each in a new process, and writes the results after
every check. A check that crashes or hangs ends only its process.
"""
