"""Settings from the environment."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import dynabro_cli
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.machine.settings import PREFIX, SETTINGS, check_settings, seconds_setting
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.ownership import heartbeats

SECONDS = [name for name, setting in SETTINGS.items() if setting.default is not None]
PACKAGE = Path(dynabro_cli.__file__).parent


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)


def texts_of_the_package() -> list[tuple[Path, ast.AST]]:
    return [
        (path, node)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]


def test_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_setting("DYNABRO_BUSY_SECONDS") == 60
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "1.5e1")
    assert seconds_setting("DYNABRO_BUSY_SECONDS") == 15


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, "0") for name in SECONDS),
        *(("DYNABRO_BUSY_SECONDS", text) for text in ("-1", "nan", "1e300", "1e-9", "soon", "")),
    ],
)
def test_what_is_not_a_legal_number_of_seconds(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    for check in (lambda: seconds_setting(name), check_settings):
        with pytest.raises(
            SpecError, match=rf"{name}='{text}': it must be .* seconds\. Try: unset {name}"
        ) as error:
            check()
        assert len(error.value.problems) == 1


def test_a_legal_environment_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_settings() == []
    for name, text in (
        ("DYNABRO_BUSY_SECONDS", "0.01"),
        ("DYNABRO_LEASE_SECONDS", "604800"),
        ("DYNABRO_FAILPOINT", "after-commit:3=KILL"),
        ("DYNABRO_DB", "here.db"),
    ):
        monkeypatch.setenv(name, text)
    assert check_settings() == []


def test_all_that_is_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "0")
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "a\nb\x1b[31m")
    monkeypatch.setenv("DYNABRO_GIT_DIFF", "maybe")
    with pytest.raises(SpecError) as error:
        check_settings()
    assert len(error.value.problems) == 3
    assert all(line.isprintable() for line in error.value.problems)


def test_a_name_that_is_not_a_setting_is_told_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYNABRO_LEASE_SECOND", "0")
    (line,) = check_settings()
    assert line.startswith(
        "'DYNABRO_LEASE_SECOND' in the environment is not a setting (did you mean "
        "'DYNABRO_LEASE_SECONDS'?)"
    )


@pytest.mark.thorough
def test_the_program_reads_no_variable_that_is_not_a_setting() -> None:
    named = {
        node.value
        for path, node in texts_of_the_package()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(PREFIX)
        and node.value.isupper()
    }
    assert named - {PREFIX} == set(SETTINGS)


def test_heartbeats_do_not_begin_with_a_lease_that_is_not_legal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_for_writing(str(tmp_path / "results.db"))
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "0")
    with pytest.raises(SpecError, match="DYNABRO_LEASE_SECONDS"), heartbeats(engine, ["me"]):
        pass
