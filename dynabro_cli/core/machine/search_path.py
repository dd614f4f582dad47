"""Python's search path without the working folder, whose files are data and not part of the
program.
"""

import contextlib
import os
import sys

from dynabro_cli.core.package import HOME


def search_path() -> list[str]:
    """Return ``sys.path`` without the working folder, which Python puts first for ``-m``, ``-c``,
    notebooks and scripts there.

    A file ``types.py`` there would run in place of Python's own module. The folder stays if
    ``PYTHONPATH`` or an installed package names it, or if this package is in it.
    """
    entries = [entry for entry in sys.path if entry]
    # the folder was removed, so nothing is imported from it
    with contextlib.suppress(FileNotFoundError):
        named = [
            os.path.realpath(name)
            for name in (HOME, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
            if name
        ]
        if os.path.realpath(entries[0]) == os.getcwd() not in named:
            del entries[0]
    return entries if HOME in entries else [HOME, *entries]
