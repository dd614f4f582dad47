"""The command line as its users meet it: arguments in; standard output, standard error and an exit
code out.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dynabro_cli.cli import app
from tests.real_runs import fill

# what would name another database, or have colours printed where there is no terminal
SETTINGS = [
    *("DYNABRO_DB", "DYNABRO_DATA"),
    *(
        "FORCE_COLOR",
        "NO_COLOR",
        "PY_COLORS",
        "GITHUB_ACTIONS",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
    ),
]


@dataclass(frozen=True)
class Outcome:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def problems(self) -> list[str]:
        """The lines on standard error without the program's name, which all must have but the
        description of a run.
        """
        lines = [line for line in self.err.splitlines() if "; to be stored in " not in line]
        assert all(line.startswith("dynabro: ") for line in lines), self.err
        return [line.removeprefix("dynabro: ") for line in lines]


Dynabro = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, without settings from outside."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def dynabro(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Dynabro:
    """Calls the entry point with arguments, in ``folder``; ``run`` computes in this process, unless
    ``--jobs`` is given.
    """

    def call(*arguments: str) -> Outcome:
        here = ("--jobs", "0") if arguments[:1] == ("run",) and "--jobs" not in arguments else ()
        monkeypatch.setattr(sys, "argv", ["dynabro", *arguments[:1], *here, *arguments[1:]])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        signal.set_wakeup_fd(-1)  # later signals of tests are not the command's
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def real_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs, to be copied."""
    path = tmp_path_factory.mktemp("real") / "results.db"
    fill(path)
    # no log beside it: a copy is complete
    assert [item.name for item in path.parent.iterdir()] == ["results.db"]
    return path


@pytest.fixture
def results(folder: Path, real_database: Path) -> Path:
    """``results.db`` with real runs, in the folder we are in."""
    return Path(shutil.copy(real_database, folder / "results.db"))
