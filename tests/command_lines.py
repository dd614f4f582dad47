"""Parsing command lines without running them: to prove the examples of the help and of the
README.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from dynabro_cli.cli.app import application


@functools.cache
def program() -> Any:
    """The program with all its commands, which takes a while to build; tests only look at it."""
    return typer.main.get_command(application())


def commands() -> Iterator[tuple[str, ...]]:
    """Every command as typed, such as ``("db", "check")``."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), program())]
    while pending:
        words, command = pending.pop()
        if hasattr(command, "commands"):
            pending += [((*words, name), child) for name, child in command.commands.items()]
        else:
            yield words


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The parameters that a command line gives to its command; an unknown command, option or
    argument raises.
    """
    command = program()
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands"):  # an option of the program itself, such as --version
        command.make_context("dynabro", rest, resilient_parsing=True)
        return {}
    for parameter in command.params:
        if parameter.name == "plugin":
            parameter.callback = None  # which loads the file; an example's file need not exist
    parameters: dict[str, Any] = command.make_context("dynabro", rest).params
    return parameters
