"""The tutorial notebook runs from beginning to end, and is kept with the outputs of one such
run.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_lines import parse

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


def cells(kind: str) -> list[dict[str, Any]]:
    return [
        cell
        for cell in json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == kind
    ]


def test_it_has_the_outputs_of_one_run() -> None:
    code = cells("code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len(code) > 10
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert "error" not in kinds
    assert all(cell["outputs"] for cell in code)
    assert TUTORIAL.stat().st_size < 500_000


def test_its_code_and_its_commands_parse() -> None:
    commands = 0
    for cell in cells("code"):
        source = "".join(cell["source"])
        if source.startswith("%%writefile") and ".yaml" in source.partition("\n")[0]:
            continue
        lines = source.removeprefix("%%writefile own.py\n").splitlines()
        ast.parse("\n".join(line for line in lines if not line.startswith("!")))
        for line in lines:
            if line.startswith("!dynabro "):
                parse(shlex.split(line.removeprefix("!dynabro ")))
                commands += 1
    assert commands >= 4


@pytest.mark.thorough
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(TUTORIAL, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    accuracies = dict(re.findall(r"^(mean|cwtm|halves) +(0\.\d+)$", printed, re.MULTILINE))
    assert set(accuracies) == {"mean", "cwtm", "halves"}
    assert float(accuracies["halves"]) > float(accuracies["mean"])
    assert "halves:share=0.2" in printed
    assert "<All keys matched successfully>" in printed
    assert re.search(r"digits, tiny: test accuracy 0\.\d+", printed)
    assert "dynabro: " not in printed, "a command of the notebook failed"
    assert (tmp_path / "plots" / "own.png").stat().st_size > 10_000
