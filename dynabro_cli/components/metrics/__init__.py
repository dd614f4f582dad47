"""Metrics that dynabro has, one in each module: plugins that ``--metrics NAME`` loads."""
