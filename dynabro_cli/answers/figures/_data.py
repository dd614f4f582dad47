"""The name under which figures in files of users import ``Results``."""

from dynabro_cli.answers.analysis.results import Results as Results
