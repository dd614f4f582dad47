"""Checks of components against their contracts, for the tests of plugins.

Each check raises AssertionError with the promise that a component breaks. The last promise is about
a short run that is made twice and resumed from a checkpoint: the numbers must be equal.

Example:
    >>> from dynabro_cli.testing import check_aggregator
    >>> check_aggregator("cwtm")
"""

from __future__ import annotations

from dynabro_cli.testing._figures import check_figure
from dynabro_cli.testing._inputs import check_model, check_partition, check_task
from dynabro_cli.testing._methods import check_method, directions
from dynabro_cli.testing._rules import check_aggregator, check_pre_aggregator
from dynabro_cli.testing._strangers import check_attack, check_switching

__all__ = [
    "check_aggregator",
    "check_attack",
    "check_figure",
    "check_method",
    "check_model",
    "check_partition",
    "check_pre_aggregator",
    "check_switching",
    "check_task",
    "directions",
]
