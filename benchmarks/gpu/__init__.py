"""Everything that is to be known of a GPU, by one command: right or wrong, fast or slow, many runs at once.

``python -m benchmarks gpu --out FOLDER`` runs the steps of ``steps.STEPS``, each in a process of its own, and writes after
every check what is known. A check that crashes or hangs ends its process and no more.
"""
