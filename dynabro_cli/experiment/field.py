"""The row of a run's field in the table of fields: name, type, column, kind, help, legal range, default of older rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from dynabro_cli.components import ParameterInfo, parameter


def row(
    default: Any,
    *,
    help: str,  # noqa: A002
    column: str,
    component: str | None = None,
    option: str | None = None,
    metavar: str = "NAME",
    since: int = 1,
    before: Any = None,
    speed: bool = False,
    memory: bool = True,
    result: bool = True,
    **limits: Any,
) -> Any:
    """Declare a field of a run.

    Args:
        default: Its default; None stands for the task's default, or a value that follows from other fields.
        help: Its meaning, as the command line has it.
        column: Its meaning in the table ``runs``.
        component: The registry of the components that it names, such as ``tasks``; None for a number, a choice or a text.
        option: Its command-line option, by default its name.
        metavar: The value in the command's help; a choice has its values there.
        since: The version of the database's schema with which it came.
        before: Its value in all runs of older versions, if it came later than the first.
        speed: True if the time of a gradient computation depends on it.
        memory: True if the memory of a run depends on it.
        result: True if a run's result depends on it, so that plots distinguish runs by it.
        limits: Its legal range, as of ``components.parameter``.
    """
    declared = parameter(default, help=help, **limits)
    told = {"column": column, "component": component, "short": option, "value": metavar, "since": since, "before": before}
    told |= {"speed": speed, "memory": memory, "result": result}
    return dataclasses.field(default=default, metadata={**declared.metadata, "row": told})


@dataclasses.dataclass(frozen=True)
class Field(ParameterInfo):
    """A row of the table; its attributes are arguments of ``row``."""

    column: str
    component: str | None
    short: str | None
    value: str
    since: int
    before: Any
    speed: bool
    memory: bool
    result: bool

    @property
    def option(self) -> str:
        """The command-line option that sets the field."""
        return "--" + (self.short or self.field).replace("_", "-")

    @property
    def metavar(self) -> str:
        """The value in the command's help."""
        return "|".join(self.limits["choices"] or (self.value,))
