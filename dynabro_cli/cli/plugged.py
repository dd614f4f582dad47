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
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def taking(*, plugin: list[str] | None, **values: Any) -> Any:
        plugins.load([*plugins.from_environment(), *(plugin or ())])
        return command(**values)

    option = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    taking.__signature__ = signature.replace(parameters=[*own, option])  # type: ignore[attr-defined]
    taking.__annotations__ = {each.name: each.annotation for each in (*own, option)}
    return taking
