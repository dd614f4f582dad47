"""The grid over which parameters are tested: every field, and every parameter of every component,
each in a setting in which it can run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import Entry, ParameterInfo
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import COMPONENTS, RunSpec, fields
from tests.tables import Test, each_row

FIELDS = {registry: field for field, registry in COMPONENTS.items()}
ENTRIES = [
    (kind, entry) for kind, registry in REGISTRIES.items() for entry in registry.entries().values()
]
PARAMETERS = [(kind, entry.name, info) for kind, entry in ENTRIES for info in entry.infos]
TRACE = str(Path(__file__).with_name("contract") / "trace.csv")
GIVEN = {"delta_max": "0.5", "p": "0.5", "c": "1", "D": "3", "K": "5"}
"""Values of parameters that have no default, if not every number is legal."""

every_field = each_row("info", fields().values(), ids=fields())


def entries_that(condition: Callable[[Entry[Any]], bool]) -> Callable[[Test], Test]:
    """The components that meet the condition."""
    chosen = [(kind, entry) for kind, entry in ENTRIES if condition(entry)]
    ids = [f"{kind}-{entry.name}" for kind, entry in chosen]
    return each_row(("kind", "entry"), chosen, ids=ids)


every_entry = entries_that(lambda entry: True)

# Settings that suit components of all kinds; each is tried in the first in which it can run.
SETTINGS: list[dict[str, str]] = [
    {
        "task": "digits",
        "model": "mlp",
        "method": "momentum",
        "workers": "18",
        "byzantine": "6",
        "budget": "700",
    },
    {"task": "digits", "model": "mlp", "method": "dynabro:filter=option2,noise_bound=1"},
    {"task": "quadratic", "method": "dynabro"},
    {"task": "mnist", "method": "sgd"},
    {"task": "text-file", "method": "sgd"},
    {
        "task": "digits",
        "model": "mlp",
        "method": "momentum",
        "workers": "18",
        "byzantine": "2",
        "budget": "700",
    },
]


def least(kind: str, name: str, info: ParameterInfo) -> str:
    """A value of a parameter that has no default."""
    if (kind, name, info.key) == ("switching", "trace", "file"):
        return f"{info.key}={TRACE}"
    return f"{info.key}={'x' if info.type is str else GIVEN.get(info.key, '1')}"


def needed(kind: str, name: str, *also: str) -> str:
    """The component with its required parameters, unless they are among ``also``."""
    set_already = [text.partition("=")[0] for text in also]
    infos = REGISTRIES[kind].entry(name).infos
    required = [info for info in infos if info.required and info.key not in set_already]
    return f"{name}:{','.join([*(least(kind, name, info) for info in required), *also])}".rstrip(
        ":"
    )


def text_of(kind: str, entry: Entry[Any], **values: str) -> str:
    """The component with some values."""
    return needed(kind, entry.name, *(f"{key}={value}" for key, value in values.items()))


@functools.cache
def setting_of(kind: str, name: str) -> dict[str, str]:
    """A setting in which the component can run."""
    for setting in SETTINGS:
        values = setting | {FIELDS[kind]: needed(kind, name)}
        if kind != "models" and values["task"].partition(":")[0] == "quadratic":
            values.pop("model", None)
        try:
            resolve(RunSpec.from_text(values))
        except SpecError:
            continue
        return values
    raise AssertionError(f"no setting suits {kind}/{name}; add one to SETTINGS")
