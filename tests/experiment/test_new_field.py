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

    def __eq__("""  # noqa: E501
FIELDS = (
    "--task",
    "quadratic",
    "--method",
    "sgd",
    "--attack",
    "shift:lambda=1",
    "--aggregator",
    "cwmed",
    "--budget",
    "20",
)
RUN = ("run", *FIELDS, "--jobs", "0", "-q")

COMMANDS = """
import contextlib, io, json, sys
from dynabro_cli.cli import app
outputs = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["dynabro", *words]
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as output:
        try:
            app.main()
        except SystemExit as ended:
            assert not ended.code, words
    output.flush()
    outputs.append(output.buffer.getvalue().decode())
print(json.dumps(outputs))
"""


def outputs(folder: Path, package: Path, *commands: tuple[str, ...]) -> list[str]:
    """Run commands one after the other in one process, with the package in ``package``; return the
    output of each.
    """
    environment = os.environ | {"PYTHONPATH": str(package), "COLUMNS": "200"}
    command = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    answer = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    printed: list[str] = json.loads(answer.stdout)
    return printed


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
    base = "{task: quadratic, method: sgd, attack: 'shift:lambda=1', aggregator: cwmed, budget: 20}"
    (tmp_path / "words.yaml").write_text(
        f"name: words\nbase: {base}\ngrid: {{word: [plain, mine, other]}}\n"
    )
    keys = ("query", "SELECT run_key FROM runs")
    _, before = outputs(
        tmp_path, ROOT.parent, (*RUN, "--db", "before.db"), (*keys, "--db", "before.db")
    )
    options, _, after, _, cells, _, log, _, planned = outputs(
        tmp_path,
        copy,
        ("run", "--help-all"),
        RUN,
        keys,
        (*RUN, "--word", "mine"),
        ("query", "SELECT word, n FROM final_accuracy ORDER BY word", "--json"),
        ("db", "check"),
        ("logs", "2"),
        ("plot", "final", "--x", "word", "--out", "drawn"),
        ("sweep", "words.yaml", "--dry-run", "--json"),
    )
    assert "--word" in options
    assert before == after  # which is a run with the value that it had before
    assert json.loads(cells) == [{"word": "mine", "n": 1}, {"word": "plain", "n": 1}]
    assert ", word mine, " in log
    assert (tmp_path / "drawn" / "final.png").exists()
    found = json.loads(planned)
    assert (found["planned"], found["stored"]) == (3, 2)
