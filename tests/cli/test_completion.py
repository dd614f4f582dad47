"""Completion of words in a shell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli.answers.figures._api import REGISTRY
from dynabro_cli.cli import completion
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.experiment.grid.sweep_lookup import shipped
from dynabro_cli.experiment.spec import COMPONENTS
from tests.cli.conftest import Dynabro

NOWHERE: Any = None
"""The context of a command line, which files do not depend on."""


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, dynabro: Dynabro) -> Callable[[str], list[str]]:
    """The words that bash is offered behind a line."""

    def behind(line: str) -> list[str]:
        place = len(f"dynabro {line}x".split()) - 1
        with monkeypatch.context() as patch:
            patch.setenv("_DYNABRO_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", f"dynabro {line}")
            patch.setenv("COMP_CWORD", str(place))
            return dynabro().out.split()

    return behind


def test_the_names_on_disk_are_those_of_the_registries(folder: Path) -> None:
    for kind in COMPONENTS.values():
        assert set(completion.components(kind)(NOWHERE)) == REGISTRIES[kind].entries().keys()
    assert set(completion.figures(NOWHERE)) == REGISTRY.entries().keys()
    for kind in ("sweeps", "searches"):
        assert set(completion.files(kind)(NOWHERE)) == set(shipped(kind))


OFFERED = {
    "run --task mn": ["mnist"],
    "run --attack optimal-": ["optimal-alie", "optimal-ipm"],
    "run --pre nnm+clip": ["nnm+clipping"],
    "sweep digits-per": ["digits-periodic"],
    "sweep mine": ["mine.yaml"],
    "plot digits-periodic": ["digits-periodic", "digits-periodic-curves"],
    "plot mi": ["mine"],
    "runs mi": ["mine"],
    "runs --sweep ": ["mine"],
    "logs ": ["1", "2"],
    "diff 1 ": ["1", "2"],
    "logs --db other.db ": [],
}


def test_words(folder: Path, dynabro: Dynabro, offered: Callable[[str], list[str]]) -> None:
    (folder / "mine.yaml").write_text(
        "name: mine\nbase: {task: quadratic, budget: 10}\nseeds: 0..1\n"
    )
    assert dynabro("sweep", "mine.yaml", "--jobs", "0").code == 0
    assert {line: offered(line) for line in OFFERED} == OFFERED


def test_a_file_that_is_no_database_offers_nothing(
    folder: Path, offered: Callable[[str], list[str]]
) -> None:
    (folder / "results.db").write_bytes(b"no database" * 100)
    assert offered("logs ") == []


def test_options_that_the_short_help_leaves_out(offered: Callable[[str], list[str]]) -> None:
    assert "--max-retries" in " ".join(offered("run --max"))
    assert "--help-all" in " ".join(offered("sweep --help"))
