"""The steps of ``python -m benchmarks gpu``, and the parts of their checks; torch is not loaded here."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Found = dict[str, object]
"""Numbers and texts of a check; ``ok`` is True for right and False for wrong, if the check judges."""


@dataclass(frozen=True)
class How:
    """Place and size of the checks.

    Attributes:
        device: The device, as dynabro names it.
        data_dir: The folder of data sets; without MNIST in it, images are made up.
        tiny: True for sizes that a CPU computes in seconds, to try the command itself.
    """

    device: str = "cuda"
    data_dir: str | None = None
    tiny: bool = False

    def of(self, full: int, tiny: int) -> int:
        """Return one of two sizes."""
        return tiny if self.tiny else full

    @property
    def gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device.startswith("cuda")


class Check(NamedTuple):
    """One thing to find out: its name, a function that finds it out, and its time limit in seconds."""

    name: str
    find: Callable[[], Found]
    seconds: float = 60.0


@dataclass(frozen=True)
class Step:
    """Checks of one kind, which share a process.

    Attributes:
        name: Its name.
        part: 0 for the machine, 1 for right or wrong, 2 for fast or slow, 3 for many at once.
        place: Module and function that yield the checks.
        seconds: Its total time limit; remaining checks wait for the next call.
        needs: Modules that it needs besides torch and numpy.
    """

    name: str
    part: int
    place: str
    seconds: float
    needs: tuple[str, ...] = field(default=())

    def checks(self, how: How) -> Iterator[Check]:
        """Return the checks, which do nothing yet."""
        module, _, function = self.place.partition(":")
        module = module if "." in module else f"benchmarks.gpu.{module}"
        found: Iterator[Check] = getattr(importlib.import_module(module), function)(how)
        return found


RUNS = ("platformdirs", "safetensors")
STORED = (*RUNS, "sqlalchemy", "typer", "rich", "yaml")

STEPS = (
    # the first call of nine minutes
    Step("machine", 0, "machine:checks", 60),
    Step("graphs", 1, "right:graphs", 240, RUNS),
    Step("gradients", 1, "right:gradients", 75, RUNS),
    Step("waiting", 1, "whole:waiting", 75, RUNS),
    Step("twice", 2, "fast:twice", 150, RUNS),
    Step("convolutions", 2, "fast:convolutions", 90, RUNS),
    # the second call
    Step("kernels", 2, "fast:kernels", 80, RUNS),
    Step("mnist", 2, "fast:mnist", 150, RUNS),
    Step("cifar", 2, "fast:cifar", 180, RUNS),
    Step("host", 2, "host:checks", 90, RUNS),
    # the third call
    Step("repeats", 1, "whole:repeats", 60, RUNS),
    Step("jobs", 3, "many:jobs", 240, (*STORED, "torchvision")),
    Step("rules", 1, "right:rules", 60, RUNS),
    Step("methods", 1, "whole:methods", 90, RUNS),
    # what is left
    Step("attacks", 1, "right:attacks", 40, RUNS),
    Step("memory", 1, "right:memory", 40, RUNS),
    Step("stopping", 1, "whole:stopping", 90, (*STORED, "sklearn")),
    Step("ceilings", 2, "fast:ceilings", 30),
    Step("ways", 2, "fast:ways", 150, RUNS),
    Step("largest", 3, "many:largest", 90, RUNS),
)
"""The steps, the most important first: a GPU may be available for only half an hour."""

WHEELS = {"yaml": "pyyaml", "sklearn": "scikit-learn"}
"""Names of packages that differ from their modules' names."""


def missing() -> list[str]:
    """Return the packages that some step needs and that are not installed, as pip names them."""
    wanted = dict.fromkeys(name for step in STEPS for name in step.needs)
    return [WHEELS.get(name, name) for name in ("torch", "numpy", "triton", *wanted) if not here(name)]


def fetching(names: Sequence[str]) -> list[str]:
    """Return the commands to install missing packages: on a machine with a network, and here, perhaps without a network."""
    version, machine = f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine()
    common = f"pip download --only-binary=:all: --python-version {version} --platform manylinux_2_28_{machine} -d wheels"
    alone = [name for name in names if name.startswith("torch")]  # with its dependencies, it would install another torch
    others = [name for name in names if name not in alone]
    lines = [f"{common} {' '.join(others)}"] if others else []
    lines += [f"{common} --no-deps {' '.join(alone)}"] if alone else []
    return [*lines, f"pip install --no-index --find-links wheels {' '.join(names)}"]


def here(module: str) -> bool:
    """Return True if a module can be imported."""
    return importlib.util.find_spec(module) is not None
