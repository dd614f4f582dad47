"""The name under which figures in files of users import ``Results``."""

from dynabro_cli.analysis.results import Results as Results
