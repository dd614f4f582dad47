"""``--plugin``, an option of every command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from dynabro_cli.components import plugins

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        help="Load components of your own; repeat for several. DYNABRO_PLUGINS names some for every command.",
        show_default=False,
    ),
]


def with_plugins(command: Callable[..., Any] | None) -> Callable[..., Any]:
    """Give a command the option ``--plugin``, and load its plugins, and the plugins of the environment, before it runs."""
    if command is None:
        raise TypeError("a command without a function")

    @functools.wraps(command)
    def taking(*, plugin: list[str] | None, **values: Any) -> Any:
        plugins.load([*plugins.from_environment(), *(plugin or ())])
        return command(**values)

    return signed(taking, [*parameters_of(command), option("plugin", Plugins)])


def option(name: str, annotation: Any) -> inspect.Parameter:
    """Return a parameter that typer reads as an option, None if it is not given."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def parameters_of(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a command, to be passed by name."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]


def signed(command: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Return a command that typer takes for one with these parameters."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
