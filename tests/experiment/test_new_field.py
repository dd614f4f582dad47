"""A new field of a run is one row of the table and a migration: a copy of the program gets one."""

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
ROW = """    tag: str = row("plain", metavar="WORD", since=11, before="plain", help="a word of one's own", column="a word")

    def __eq__("""
MIGRATION = '''"""A word of one's own."""

import sqlalchemy as sa
from alembic import op

from dynabro_cli.store.views import VIEWS

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DROP VIEW final_accuracy")
    op.add_column("runs", sa.Column("tag", sa.Text(), server_default="plain", nullable=False))
    op.execute(VIEWS["final_accuracy"])
'''
SPEC = ("--task", "quadratic", "--method", "sgd", "--attack", "shift:lambda=1", "--aggregator", "cwmed", "--budget", "20", "-q")


def program(folder: Path, package: Path, *arguments: str) -> str:
    """What a command prints, with the package in ``package``."""
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
    for name, old, new in (
        ("experiment/spec.py", "    def __eq__(", ROW),
        ("store/tables.py", "SCHEMA_VERSION = 10", "SCHEMA_VERSION = 11"),
    ):
        text = (package / name).read_text()
        assert text.count(old) == 1
        (package / name).write_text(text.replace(old, new))
    (package / "store/migrations/versions/0011_a_word.py").write_text(MIGRATION)
    return package.parent


def test_a_row_and_a_migration_make_a_field(copy: Path, tmp_path: Path) -> None:
    old = ROOT.parent
    program(tmp_path, old, "run", *SPEC)  # into a database of this version
    assert "--tag" in program(tmp_path, copy, "run", "--help")
    program(tmp_path, copy, "db", "upgrade")
    program(tmp_path, copy, "run", *SPEC, "--tag", "mine")
    cells = json.loads(program(tmp_path, copy, "query", "SELECT tag, n FROM final_accuracy ORDER BY tag", "--json"))
    assert cells == [{"tag": "mine", "n": 1}, {"tag": "plain", "n": 1}]
    program(tmp_path, copy, "db", "check")
    assert ", tag mine, " in program(tmp_path, copy, "logs", "2")
    program(tmp_path, copy, "plot", "final", "--x", "tag", "--out", "drawn")
    assert (tmp_path / "drawn" / "final.png").exists()
    base = "{task: quadratic, method: sgd, attack: 'shift:lambda=1', aggregator: cwmed, budget: 20}"
    (tmp_path / "tags.yaml").write_text(f"name: tags\nbase: {base}\ngrid: {{tag: [plain, mine, other]}}\n")
    planned = json.loads(program(tmp_path, copy, "sweep", "tags.yaml", "--dry-run", "--json"))
    assert (planned["planned"], planned["stored"]) == (3, 2)
