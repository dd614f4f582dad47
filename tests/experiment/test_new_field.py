"""A new field of a run is one row of the table: a copy of the program gets one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dynabro_cli

pytestmark = pytest.mark.thorough

ROOT = Path(dynabro_cli.__file__).parent
ROW = """    word: str = row("plain", metavar="WORD", before="plain", help="a word of one's own", column="a word")

    def __eq__("""
SPEC = ("--task", "quadratic", "--method", "sgd", "--attack", "shift:lambda=1", "--aggregator", "cwmed", "--budget", "20", "-q")


def program(folder: Path, package: Path, *arguments: str) -> str:
    """Output of a command, with the package in ``package``."""
    environment = os.environ | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "dynabro_cli", *arguments]
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a program whose runs have a field more."""
    package = tmp_path / "copy" / ROOT.name
    shutil.copytree(ROOT, package, ignore=shutil.ignore_patterns("__pycache__"))
    file = package / "experiment/spec.py"
    text = file.read_text()
    assert text.count("    def __eq__(") == 1
    file.write_text(text.replace("    def __eq__(", ROW))
    return package.parent


def test_a_row_makes_a_field(copy: Path, tmp_path: Path) -> None:
    assert "--word" in program(tmp_path, copy, "run", "--help")
    program(tmp_path, copy, "run", *SPEC)
    program(tmp_path, ROOT.parent, "run", *SPEC, "--db", "before.db")
    both = ((copy, "results.db"), (ROOT.parent, "before.db"))
    keys = [program(tmp_path, package, "query", "SELECT run_key FROM runs", "--db", db) for package, db in both]
    assert keys[0] == keys[1]  # which is a run with the value that it had before
    program(tmp_path, copy, "run", *SPEC, "--word", "mine")
    cells = json.loads(program(tmp_path, copy, "query", "SELECT word, n FROM final_accuracy ORDER BY word", "--json"))
    assert cells == [{"word": "mine", "n": 1}, {"word": "plain", "n": 1}]
    program(tmp_path, copy, "db", "check")
    assert ", word mine, " in program(tmp_path, copy, "logs", "2")
    program(tmp_path, copy, "plot", "final", "--x", "word", "--out", "drawn")
    assert (tmp_path / "drawn" / "final.png").exists()
    base = "{task: quadratic, method: sgd, attack: 'shift:lambda=1', aggregator: cwmed, budget: 20}"
    (tmp_path / "words.yaml").write_text(f"name: words\nbase: {base}\ngrid: {{word: [plain, mine, other]}}\n")
    planned = json.loads(program(tmp_path, copy, "sweep", "words.yaml", "--dry-run", "--json"))
    assert (planned["planned"], planned["stored"]) == (3, 2)
