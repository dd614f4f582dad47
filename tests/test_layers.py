"""Modules that imports load, in a fresh interpreter: help and listings must not wait for torch."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dynabro_cli.runs.store
from dynabro_cli.core.package import ROOT
from tests.tables import each_row

STORE = [
    module.name
    for module in pkgutil.walk_packages(dynabro_cli.runs.store.__path__, "dynabro_cli.runs.store.")
]
EXAMPLE = Path(__file__).parents[1] / "results.db.example"
LIGHT = ("torch", "torchvision", "sqlalchemy", "pandas", "matplotlib", "sklearn")


def loaded(program: str) -> set[str]:
    """The top-level packages that are loaded after ``program`` ran."""
    tail = "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    answer = subprocess.run(
        [sys.executable, "-c", program + tail], capture_output=True, text=True, check=True
    )
    return set(answer.stderr.split())


@each_row(
    "name",
    [
        "dynabro_cli",
        "dynabro_cli.cli.app",
        "dynabro_cli.experiment.spec",
        "dynabro_cli.core.events",
        "dynabro_cli.gradients",
    ],
)
def test_the_command_line_starts_without_torch_and_sqlalchemy(name: str) -> None:
    modules = loaded(f"import {name}")
    assert "dynabro_cli" in modules
    assert modules.isdisjoint(LIGHT)


@each_row(
    "arguments",
    [["--help"], ["run", "--help"], ["sweep", "--help"], ["plot", "--help"], ["--version"]],
)
def test_help_needs_neither(arguments: list[str]) -> None:
    program = f"""
import sys
from dynabro_cli.cli.app import main
sys.argv = ["dynabro", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None)
"""
    assert loaded(program).isdisjoint(LIGHT)


@pytest.mark.thorough
def test_the_database_is_read_without_torch() -> None:
    assert {
        "dynabro_cli.runs.store.open.engine",
        "dynabro_cli.runs.store.write.recorder",
        "dynabro_cli.runs.store.read.queries",
    } <= set(STORE)
    modules = loaded("import " + ", ".join(STORE))
    assert "sqlalchemy" in modules
    assert modules.isdisjoint({"torch", "torchvision", "sklearn"})


def program_of(commands: list[list[str]]) -> str:
    """A program that gives commands on the shipped database."""
    return f"""
import sys
from dynabro_cli.cli.app import main
for arguments in {commands!r}:
    sys.argv = ["dynabro", *arguments, "--db", {str(EXAMPLE)!r}]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, None), (arguments, end.code)
"""


def test_two_methods_are_compared_without_torch_and_matplotlib() -> None:
    where = "task = 'digits' AND attack = 'sf'"
    modules = loaded(program_of([["compare", "sgd", "momentum:beta=0.9", "--where", where]]))
    assert {"sqlalchemy", "pandas"} <= modules
    assert modules.isdisjoint({"torch", "matplotlib"})


def test_stored_runs_are_shown_and_drawn_without_torch(tmp_path: Path) -> None:
    where = ["--sweep", "digits-periodic"]
    commands = [
        ["runs", *where],
        ["show", "1"],
        ["status"],
        ["query", "SELECT count(*) FROM runs"],
        ["compare", "--all", "method", *where],
        ["plot", "final", *where, "--out", str(tmp_path)],
        ["plot", "matrix", *where, "--out", str(tmp_path)],
    ]
    modules = loaded(program_of(commands))
    assert len([*tmp_path.glob("*.png")]) == 2
    assert {"sqlalchemy", "matplotlib"} <= modules
    assert modules.isdisjoint({"torch", "torchvision", "sklearn"})


def test_the_simulation_knows_nothing_of_sql_and_the_terminal() -> None:
    modules = loaded("import dynabro_cli.simulation.setup")
    assert "torch" in modules
    assert modules.isdisjoint({"sqlalchemy", "typer", "rich"})


def test_public_names_load_on_first_use() -> None:
    modules = loaded(
        "import dynabro_cli; from dynabro_cli import RunSpec; RunSpec(seed=1).problems(); "
        "dir(dynabro_cli)"
    )
    assert "torch" not in modules
    assert all(getattr(dynabro_cli, name) is not None for name in dynabro_cli.__all__)


def test_events_are_where_notebooks_import_them() -> None:
    modules = loaded("from dynabro_cli import RunSpec, events, simulate; events.Evaluated")
    assert "dynabro_cli" in modules


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="module 'dynabro_cli' has no attribute 'simulat'"):
        dynabro_cli.simulat  # noqa: B018


def test_only_one_module_counts_folders() -> None:
    """A module that moves keeps working."""
    counts = [
        path.relative_to(ROOT).as_posix()
        for path in Path(ROOT).rglob("*.py")
        if re.search(
            r"__file__\)*\.parent|dirname\(__file__|__path__\[0\]", path.read_text("utf-8")
        )
    ]
    assert counts == ["core/package.py"]


def test_without_flower_its_strategy_says_what_to_install() -> None:
    program = "import sys; sys.modules['flwr'] = None; import dynabro_cli.flower"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("ImportError: dynabro_cli.flower needs Flower 1.42 or newer (No module ")
    assert last.endswith("). Try: pip install 'dynabro[flower]'")
