"""Figures of the paper and of dynabro's own sweeps: each shows the runs of one sweep, or a table
other than ``runs``.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
