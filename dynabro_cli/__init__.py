"""dynabro: experiments in Byzantine-robust learning whose Byzantine workers change identity during training.

For notebooks: ``from dynabro_cli import RunSpec, simulate, make_aggregator, make_attack, make_pre_aggregator,
make_switching, load_plugin``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynabro_cli.api import make_aggregator, make_attack, make_pre_aggregator, make_switching
    from dynabro_cli.components.plugins import load_plugin
    from dynabro_cli.experiment.spec import RunSpec
    from dynabro_cli.simulation.setup import simulate
    from dynabro_cli.store.read.frames import load

__version__ = "0.1.0"
__all__ = [
    "RunSpec",
    "load",
    "load_plugin",
    "make_aggregator",
    "make_attack",
    "make_pre_aggregator",
    "make_switching",
    "simulate",
]

_PUBLIC = {
    "RunSpec": "dynabro_cli.experiment.spec",
    "simulate": "dynabro_cli.simulation.setup",
    "make_aggregator": "dynabro_cli.api",
    "make_attack": "dynabro_cli.api",
    "make_pre_aggregator": "dynabro_cli.api",
    "make_switching": "dynabro_cli.api",
    "load": "dynabro_cli.store.read.frames",
    "load_plugin": "dynabro_cli.components.plugins",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that importing the package does not import torch."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
