"""Places where runs are made, one module or package each: ``--executor NAME`` opens the one called
NAME.

A back end is a module with a function ``opened``: a context manager that starts what takes long,
such as processes or a connection, and yields a function from runs to ``Places``. Nothing else names
the back ends.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.machine.native import check_choice
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.executors.backend import Places

MOST_THREADS = 1024
"""Most threads of a process. A process with more is slower on any machine, or cannot start them."""
Open = AbstractContextManager[Callable[[Sequence[Run]], Places]]


def names() -> list[str]:
    """Return the names of the back ends, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def check(options: Options) -> None:
    """Raise SpecError with all problems of the options that are known without looking for
    devices.
    """
    if options.executor not in names():
        raise SpecError(
            f"executor={options.executor} is not legal. Try: --executor {' or '.join(names())}"
        )
    if options.address is not None and options.executor == "local":
        raise SpecError(f"address={options.address} is not valid here: it requires --executor ray")
    limits = {
        "jobs": 0 if options.executor == "local" else 1,
        "threads": 1,
        "max_retries": 0,
        "jobs_per_gpu": 1,
    }
    values = {name: getattr(options, name) for name in limits}
    problems = [
        f"{name}={value} is not legal; it must be at least {limits[name]}"
        for name, value in values.items()
        if value is not None and value < limits[name]
    ]
    problems += [
        f"{name}={value} is not legal; it must be a number of seconds above 0"
        for name, value in (
            ("timeout", options.timeout),
            ("checkpoint_every", options.checkpoint_every),
        )
        if value is not None and not 0 < value < math.inf
    ]
    if options.threads is not None and options.threads > MOST_THREADS:
        problems.append(
            f"threads={options.threads} is not legal; it must be at most {MOST_THREADS}"
        )
    if problems:
        raise SpecError(problems)
    check_choice(options.compile)


def opened(options: Options, most: int) -> Open:
    """Open the back end of ``options.executor`` for at most ``most`` runs.

    Raises:
        SpecError: An option is not legal; nothing has started.
    """
    check(options)
    open_: Open = importlib.import_module(f"{__name__}.{options.executor}").opened(options, most)
    return open_
