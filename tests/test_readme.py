"""The README tells the truth: its commands parse, its SQL runs, and it documents every column and every exit code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynabro_cli import errors
from dynabro_cli.experiment.spec import RunSpec, fields
from dynabro_cli.settings import SETTINGS
from dynabro_cli.store import queries
from dynabro_cli.store.engine import open_read_only
from dynabro_cli.store.tables import STATUSES, metadata
from tests.command_lines import parse
from tests.real_runs import fill
from tests.store.made import read

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """The contents of the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    """What stands under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert found, f"README.md has no section {title!r}"
    return found[1]


def command_lines() -> Iterator[str]:
    """Every call of dynabro in the ``sh`` blocks, by itself."""
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            words.whitespace_split = True
            words.commenters = "#"
            call: list[str] = []
            for word in [*words, ";"]:
                if set(word) <= set("|&;<>"):
                    if call and call[0].rsplit("/", 1)[-1] == "dynabro":
                        yield shlex.join(call[1:])
                    call = []
                else:
                    call.append(word)


def tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Each markdown table with the paragraph before it; its rows without the header."""
    for found in re.finditer(r"((?:^(?!\|).*\n)*)((?:^\|.*\n)+)", text, re.MULTILINE):
        paragraph = found[1].strip().split("\n\n")[-1]
        rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in found[2].splitlines()]
        yield paragraph, rows[2:]


def quoted(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme") / "results.db"
    fill(path)
    return path


# --- commands

COMMANDS = list(dict.fromkeys(command_lines()))


def test_there_are_commands() -> None:
    assert "run" in COMMANDS
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_parses(command: str) -> None:
    words = shlex.split(command)
    parameters = parse(words)
    if words[0] == "run":
        given = {name: value for name, value in parameters.items() if name in fields() and value is not None}
        if parameters["pre"]:
            given["pre_aggregators"] = "+".join(parameters["pre"])
        from dynabro_cli.experiment.resolve import resolve

        resolve(RunSpec.from_text(given))
    if words[0] == "show" and not words[1].startswith("runs/"):
        from dynabro_cli.experiment.resolve import REGISTRIES

        kind, name = words[1].split("/")
        assert name in REGISTRIES[kind].entries()


# --- SQL

STATEMENTS = [
    statement for block in blocks("sql", section("The database")) for statement in block.split(";") if statement.strip()
]


def test_there_is_sql() -> None:
    assert len(STATEMENTS) >= 5


@pytest.mark.parametrize("sql", STATEMENTS, ids=[statement.strip().splitlines()[0] for statement in STATEMENTS])
def test_sql_of_the_readme_gives_rows(sql: str, database: Path) -> None:
    table = queries.query(open_read_only(str(database)), sql)
    rows = list(table.rows)
    assert rows
    assert any(value is not None for row in rows for value in row)


# --- the database


@pytest.mark.parametrize("name", metadata.tables)
def test_every_column_is_documented(name: str) -> None:
    documented = [
        column
        for paragraph, rows in tables(section("The database"))
        if quoted(paragraph)[:1] == [name]
        for row in rows
        for column in quoted(row[0])
    ]
    assert documented, f"no table under a paragraph that begins with `{name}`"
    assert len(set(documented)) == len(documented)
    assert set(documented) == set(metadata.tables[name].columns.keys())


@pytest.mark.parametrize("view", ["byzantine_histogram", "final_accuracy"])
def test_every_column_of_a_view_is_documented(view: str, database: Path) -> None:
    paragraphs = [text for text in section("The database").split("\n\n") if f"`{view}`" in text and "iew" in text]
    words = {word for text in paragraphs for word in quoted(text)}
    columns = {name for (name,) in read(database, "SELECT name FROM pragma_table_info(?)", view)}
    described = set(metadata.tables["runs"].columns.keys()) if view == "final_accuracy" else set()  # what makes a cell
    assert columns - described
    assert columns - described <= words


def test_every_view_is_documented(database: Path) -> None:
    views = {name for (name,) in read(database, "SELECT name FROM sqlite_master WHERE type = 'view'")}
    assert views <= set(quoted(section("The database")))


def test_every_status_is_documented() -> None:
    assert set(STATUSES) <= set(quoted(section("The database")))


# --- exit codes


def error_classes(root: type[errors.DynabroError] = errors.DynabroError) -> Iterator[type[errors.DynabroError]]:
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def test_every_exit_code_is_documented() -> None:
    ((_, rows),) = tables(section("Exit codes"))
    codes = [int(row[0].strip("`")) for row in rows]
    assert codes == sorted(codes)
    assert set(codes) == {0} | {kind.exit_code for kind in error_classes()}
    assert all(row[1] for row in rows)


# --- sweeps


def test_the_sweep_of_the_readme_is_one() -> None:
    from dynabro_cli.grid.plan import plan
    from dynabro_cli.grid.sweep_file import parse_sweep

    (text,) = blocks("yaml", section("Run an experiment"))
    planned = plan(parse_sweep(text, "README.md"))
    assert (len(planned.runs), planned.duplicates, planned.excluded) == (80, 0, 10)


def test_every_key_of_a_sweep_is_documented() -> None:
    from dynabro_cli.grid.sweep_file import KEYS

    documented = [[key for row in rows for key in quoted(row[0])] for _, rows in tables(section("Run an experiment"))]
    assert list(KEYS) in documented


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("sweep ")])
def test_a_sweep_of_the_readme_can_be_planned(command: str) -> None:
    from dynabro_cli.grid.plan import plan
    from dynabro_cli.grid.sweep_lookup import load_sweep

    parameters = parse(shlex.split(command))
    assert plan(load_sweep(parameters["name"], parameters["settings"] or ())).runs


# --- settings


def test_every_setting_is_documented() -> None:
    text = section("Run an experiment").partition("### Settings from the environment\n")[2].partition("\n### ")[0]
    ((_, rows),) = tables(text)
    told = {quoted(row[0])[0]: row[1:] for row in rows}
    users = {name: setting for name, setting in SETTINGS.items() if not setting.meaning.startswith("for tests:")}
    assert list(told) == list(users)
    for name, setting in users.items():
        meaning, legal, default = told[name]
        assert (meaning.replace("`", ""), legal) == (setting.meaning, setting.legal)
        assert setting.default is None or float(default) == setting.default
