"""The text of ``plots/``: every number and verdict of it is computed by a query, and it is the database's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from dynabro_cli.figures._api import GRIDS, RECORDS, REGISTRY

ROOT = Path(__file__).parents[2]
PLOTS, EXAMPLE = ROOT / "plots", ROOT / "results.db.example"
PARAMETERS = {"0.9", "0.99", "0.01", "0.05", "0.1", "0.7", "0.8", "3.2"}
"""Decimal numbers that the template may have: parameters, limits that its sentences name, and a section of the paper."""


@pytest.fixture(scope="module")
def render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", PLOTS / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_is_the_databases(render: ModuleType) -> None:
    """Rendered again it is the same, byte for byte; every query is used, and every claim belongs to a figure."""
    renderer = render.Renderer(EXAMPLE)
    template = (PLOTS / "README.template.md").read_text(encoding="utf-8")
    assert renderer.render(template) == (PLOTS / "README.md").read_text(encoding="utf-8")
    assert renderer.unused == set()
    REGISTRY.entries()
    assert {claim.figure for claim in renderer.claims} <= {*GRIDS, *RECORDS}
    assert len({claim.name for claim in renderer.claims}) == len(renderer.claims)


def test_no_finding_is_typed() -> None:
    """In what the template says of findings no decimal number is typed, but for parameters; what the paper says is quoted."""
    template = (PLOTS / "README.template.md").read_text(encoding="utf-8")
    words = re.sub(r"\{\{.*?\}\}", "", template, flags=re.DOTALL)
    words = re.sub(r"\*\*The paper:\*\*.*?(?=\*\*Here|\n\n)", "", words, flags=re.DOTALL)
    assert set(re.findall(r"(?<![\w.])\d+\.\d+", words)) <= PARAMETERS


def test_agreement(render: ModuleType) -> None:
    assert render.agreement(["agrees", "agrees"]) == "yes"
    assert render.agreement(["agrees", "not run"]) == "yes"
    assert render.agreement(["no", "no"]) == "no"
    assert render.agreement(["agrees", "no"]) == "partly"
    assert render.agreement(["under some readings"]) == "partly"
    assert render.agreement(["undecided", "no"]) == "partly"
    assert render.agreement(["not run"]) == render.agreement([]) == "not to be told"
    assert render.agreement(["not run", "undecided"]) == "not to be told"


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (["agrees", "agrees"], "agrees"),
        (["no", "agrees"], "under some readings"),
        (["under some readings", "no"], "under some readings"),
        (["undecided", "no"], "undecided"),
        (["no", "not run"], "no"),
        (["agrees", "agrees", "no"], "under some readings"),
        (["agrees", "agrees", "agrees"], "agrees"),
    ],
)
def test_a_claim_that_is_judged_under_several_readings(verdicts: list[str], verdict: str, render: ModuleType) -> None:
    assert render.overall(verdicts) == render.overall(verdicts[::-1]) == verdict


def test_readings_of_the_paper_are_told_apart(render: ModuleType) -> None:
    """Claims of Figures 1, 5, 6 and 7 name all; a verdict of each is what its own runs give."""
    claims = {claim.name: claim for claim in render.Renderer(EXAMPLE).claims}
    assert claims["fig1-09-at-20"].readings == {"logits": "agrees", "softmax": "no", "large steps": "agrees"}
    assert claims["fig1-099-at-100"].readings["large steps"] == "agrees"
    assert claims["fig1-09-at-20"].verdict == "under some readings"
    figures = {name + end for name in ("mnist-sf-cwtm", "mnist-alie-gm") for end in ("", "-curves")}
    of_figures = {name for name, claim in claims.items() if claim.figure in figures and name.startswith("fig")}
    assert {name for name, claim in claims.items() if claim.readings} == of_figures
