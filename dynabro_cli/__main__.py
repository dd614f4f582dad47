"""``python -m dynabro_cli`` is ``dynabro``."""

from dynabro_cli.cli.app import main

main()
