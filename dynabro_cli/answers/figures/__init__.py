"""Figures and tables drawn from the database, one file each, without torch."""

import logging

# without a home it warns of its temporary cache
logging.getLogger("matplotlib").setLevel(logging.ERROR)
