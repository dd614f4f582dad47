"""Values that need no conversion are what typer makes of them, and the others are left to typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from dynabro_cli.cli.plain_values import take_plain_values
from tests.cli.conftest import Dynabro


def command(
    name: Annotated[str, typer.Argument()] = "x",
    count: Annotated[int, typer.Option(min=1)] = 3,
    rate: Annotated[float, typer.Option(envvar="PLAIN_RATE")] = 1,
    folder: Annotated[Path | None, typer.Option()] = None,
    strict: Annotated[Path | None, typer.Option(exists=True)] = None,
    words: Annotated[list[str] | None, typer.Option("--word")] = None,
    upper: Annotated[str, typer.Option(parser=str.upper)] = "a",
    flag: bool = False,
) -> None:
    """Take values of many types."""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "y --count 5",
        "--rate 2",
        "--folder here",
        "--folder .",
        "--folder pyproject.toml/x",
        "--folder -",
        "--strict here",
        "--word a --word b",
        "--upper b",
        "--flag",
        "--count 0",
        "--count x",
    ],
)
@pytest.mark.parametrize("environment", [None, "4"])
def test_values_are_those_of_typer(line: str, environment: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if environment is not None:
        monkeypatch.setenv("PLAIN_RATE", environment)
    found: list[Any] = []
    for plain in (False, True):
        app = typer.Typer(add_completion=False)
        app.command()(command)
        made: Any = typer.main.get_command(app)
        for parameter in made.params if plain else ():
            take_plain_values(parameter)
        try:
            values = made.make_context("it", line.split()).params
        except typer.BadParameter as error:
            found.append(str(error))
        else:
            found.append({name: (type(value), value) for name, value in values.items()})
    assert found[0] == found[1]


def test_a_text_of_another_type_is_told(dynabro: Dynabro) -> None:
    outcome = dynabro("query", "SELECT 1", "--timeout", "soon")
    assert outcome.code == 2
    (line,) = outcome.problems
    assert "--timeout" in line
