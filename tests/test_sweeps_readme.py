"""The recipes of sweeps/README.md: their commands parse, their shell is shell, and Ray takes their
cluster.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.command_lines import parse

TEXT = (Path(__file__).parents[1] / "sweeps" / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def calls() -> list[list[str]]:
    """Every call of dynabro, without the program's name."""
    lines = "\n".join([*blocks("sh"), *blocks("bash")]).splitlines()
    return [
        shlex.split(line.removesuffix("&"))[1:] for line in lines if line.startswith("dynabro ")
    ]


def test_commands_parse() -> None:
    assert len(calls()) >= 4
    for call in calls():
        parse(call)


def test_scripts_are_shell() -> None:
    scripts = blocks("bash")
    assert len(scripts) == 2
    for script in (*scripts, *blocks("sh")):
        assert (
            subprocess.run(
                ["bash", "-n"], input=script, text=True, capture_output=True, check=False
            ).stderr
            == ""
        )


def test_ray_takes_the_cluster() -> None:
    util = pytest.importorskip(
        "ray.autoscaler._private.util", reason="Ray is not installed: pip install 'dynabro[ray]'"
    )
    (cluster,) = blocks("yaml")
    util.validate_config(util.prepare_config(yaml.safe_load(cluster)))
