"""``python -m dynabro_cli`` is ``dynabro``."""

import sys

from dynabro_cli.core.machine.search_path import search_path

sys.path[:] = search_path()  # before the next import, which would find files of the working folder

from dynabro_cli.cli.app import main  # noqa: E402

main()
