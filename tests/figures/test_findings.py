"""The pages of ``plots/``: every number and verdict of it is computed by a query, and it is the database's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from dynabro_cli.figures._api import GRIDS, RECORDS, REGISTRY

ROOT = Path(__file__).parents[2]
PLOTS, EXAMPLE = ROOT / "plots", ROOT / "results.db.example"
PARAMETERS = {"0.9", "0.99", "0.01", "0.03", "0.05", "0.1", "0.7", "0.8", "3.2"}
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
    """Rendered again they are the same, byte for byte; every query is used, and every claim belongs to a figure."""
    renderer = render.Renderer(EXAMPLE)
    texts = {path: renderer.render(template) for path, template in render.pages().items()}
    assert texts == {path: (PLOTS / path).read_text(encoding="utf-8") for path in texts}
    assert {path.name for path in (PLOTS / "figures").glob("*.md")} == {path.name for path in texts if path.parent.name}
    assert renderer.unused == set()
    REGISTRY.entries()
    assert {claim.figure for claim in renderer.claims} <= {*GRIDS, *RECORDS}
    assert len({claim.name for claim in renderer.claims}) == len(renderer.claims)


def test_no_finding_is_typed(render: ModuleType) -> None:
    """Templates contain no typed decimal numbers about findings, except parameters; quotations of the paper may."""
    words = re.sub(r"\{\{.*?\}\}", "", "\n\n".join(render.pages().values()), flags=re.DOTALL)
    words = re.sub(r"\*\*The paper:\*\*.*?(?=\*\*Here|\n\n)", "", words, flags=re.DOTALL)
    assert set(re.findall(r"(?<![\w.])\d+\.\d+", words)) <= PARAMETERS


def test_agreement(render: ModuleType) -> None:
    assert render.agreement(["agrees", "agrees"]) == "yes"
    assert render.agreement(["agrees", "not run"]) == "yes"
    assert render.agreement(["no", "no"]) == "no"
    assert render.agreement(["agrees", "no"]) == "partly"
    assert render.agreement(["under some readings"]) == "partly"
    assert render.agreement(["undecided", "no"]) == "partly"
    assert render.agreement(["not run"]) == render.agreement([]) == "not run"
    assert render.agreement(["not run", "undecided"]) == "undecided"


@pytest.mark.thorough
def test_readings_of_the_paper_are_apart(render: ModuleType) -> None:
    """Claims of Figures 1, 5, 6 and 7 are judged under each; a verdict of each is what its own runs give."""
    claims = {claim.name: claim for claim in render.Renderer(EXAMPLE).claims}
    known = {reading: verdict for reading, (verdict, _) in claims["fig1-09-at-20"].readings.items()}
    assert known["gradient"] == known["large steps"] == "agrees"
    assert known["softmax"] == "no"
    figures = {name + end for name in ("mnist-sf-cwtm", "mnist-alie-gm") for end in ("", "-curves")}
    of_figures = {name for name, claim in claims.items() if claim.figure in figures and not claim.setting}
    assert {name for name, claim in claims.items() if claim.readings} == of_figures
    assert all(claim.verdict == claim.readings[render.MAIN][0] for claim in claims.values() if render.MAIN in claim.readings)


def test_a_trend_is_over_all_runs(render: ModuleType) -> None:
    """4 of 4 pairs of different k are in order: p = 1/C(4, 2); and equal numbers have no trend."""
    trend = render.Trend()
    for k, x in ((5, 0.1), (5, 0.2), (10, 0.3), (10, 0.4)):
        trend.step(k, x)
    assert 0.01 < trend.finalize() < 0.1
    flat = render.Trend()
    for k in (5, 10, 20):
        flat.step(k, 0.5)
    assert flat.finalize() == 1.0
    assert render.Trend().finalize() is None


def test_a_paired_difference(render: ModuleType) -> None:
    paired = render.PairedP()
    paired.step(0.1)
    assert paired.finalize() is None
    paired.step(0.3)  # t = 0.2/(sqrt(0.02)/sqrt(2)) = 2 with one degree of freedom: 1 - 2 atan(2)/pi
    assert paired.finalize() == pytest.approx(0.2951672353)
