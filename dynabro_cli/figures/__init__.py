"""Figures and tables drawn from the database, one file each, without torch."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # without a home it warns of its temporary cache
