"""dynabro: experiments in Byzantine-robust learning, with Byzantine workers that change identity
during training.

For notebooks: ``from dynabro_cli import run, sweep, load, simulate, RunSpec, make_aggregator,
make_attack, make_pre_aggregator, make_switching, make_task, load_plugin``.
"""

# and no more: ``python -m dynabro_cli`` would still import files of the working folder here
import importlib
import sys

if sys.platform not in ("linux", "darwin"):
    # the module for output cannot be imported there
    sys.stderr.write("dynabro: it needs Linux or macOS. Try: on Windows, WSL\n")  # noqa: TID251
    raise SystemExit(78)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dynabro_cli.components.api import (
        make_aggregator,
        make_attack,
        make_pre_aggregator,
        make_switching,
    )
    from dynabro_cli.components.tasks._arrays import make_task
    from dynabro_cli.core import events as events
    from dynabro_cli.core.registration.plugins import load_plugin
    from dynabro_cli.experiment.spec import RunSpec
    from dynabro_cli.runs.notebook import run, sweep
    from dynabro_cli.runs.store.read.frames import load
    from dynabro_cli.simulation.setup import simulate

__version__ = "1.2.0"
__all__ = [
    "RunSpec",
    "load",
    "load_plugin",
    "make_aggregator",
    "make_attack",
    "make_pre_aggregator",
    "make_switching",
    "make_task",
    "run",
    "simulate",
    "sweep",
]

_PUBLIC = {
    "RunSpec": "dynabro_cli.experiment.spec",
    "simulate": "dynabro_cli.simulation.setup",
    "make_aggregator": "dynabro_cli.components.api",
    "make_attack": "dynabro_cli.components.api",
    "make_pre_aggregator": "dynabro_cli.components.api",
    "make_switching": "dynabro_cli.components.api",
    "make_task": "dynabro_cli.components.tasks._arrays",
    "run": "dynabro_cli.runs.notebook",
    "sweep": "dynabro_cli.runs.notebook",
    "load": "dynabro_cli.runs.store.read.frames",
    "load_plugin": "dynabro_cli.core.registration.plugins",
}


def __getattr__(name: str) -> "Any":
    """Import the public names on first use, so that importing the package does not import torch."""
    if name == "events":  # what ``simulate`` yields
        return importlib.import_module(f"{__name__}.core.events")
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
