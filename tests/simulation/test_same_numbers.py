"""A step's numbers do not depend on the number of threads, on how much is computed at a time, or on
compiling.
"""

from __future__ import annotations

import pytest
import torch

from dynabro_cli import RunSpec
from dynabro_cli.core.events import Started
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.gradients import engine
from dynabro_cli.simulation import setup
from dynabro_cli.simulation.compilation import missing_tool
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.setup import simulate

pytestmark = pytest.mark.usefixtures("same_threads_after")

CELLS = {
    "momentum": {"method": "momentum", "attack": "ipm", "aggregator": "cwtm"},
    "dynabro": {
        "method": "dynabro:jmax=3",
        "attack": "sf",
        "aggregator": "gm",
        "pre_aggregators": "nnm",
    },
    "alie": {
        "method": "dynabro:jmax=2",
        "attack": "alie",
        "aggregator": "krum",
        "byzantine": 7,
        "seed": 2,
    },
    "participation": {
        "method": "momentum",
        "attack": "alie",
        "aggregator": "cwtm",
        "participation": 0.6,
    },
    "mfm": {"method": "sgd", "attack": "none", "aggregator": "mfm:threshold=10"},
}


def steps(cell: str, threads: int = 1, compile_: str = "off", count: int = 3) -> list[torch.Tensor]:
    """x at the start and after each of the first rounds."""
    torch.set_num_threads(threads)
    with torch.no_grad():
        simulation = prepared(cell, compile_)
        seen = [simulation._parts.problem.x.clone()]
        for _ in range(count):
            simulation._round()
            seen.append(simulation._parts.problem.x.clone())
    return seen


def prepared(cell: str, compile_: str) -> Simulation:
    run = resolve(RunSpec(budget=100, **CELLS[cell]))  # type: ignore[arg-type]
    return setup._prepare(run, torch.device("cpu"), compile_)[0]


def assert_close(
    first: list[torch.Tensor], second: list[torch.Tensor], within: float = 1e-6, rounded: float = 0
) -> None:
    """The first step within a share of its length; later ones, which start from there, within a
    little more.

    A share ``rounded`` of the coordinates may differ by one rounding of x instead, which is much to
    a small step.
    """
    assert torch.equal(first[0], second[0])
    for number in range(1, len(first)):
        step = (second[number] - second[number - 1]).norm()
        assert float(step) > 0
        gap, rounding = (
            (first[number] - second[number]).abs(),
            torch.finfo(torch.float32).eps * second[number].abs(),
        )
        largest = gap.topk(int(rounded * len(gap))).indices
        gap[largest[gap[largest] <= rounding[largest]]] = 0
        assert float(gap.norm() / step) < within * (5 * number - 4)


@pytest.mark.thorough
@pytest.mark.parametrize("cell", CELLS)
def test_repeats_are_the_same_bit_for_bit(cell: str) -> None:
    assert all(torch.equal(*pair) for pair in zip(steps(cell), steps(cell), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("cell", CELLS)
def test_threads(cell: str) -> None:
    assert_close(steps(cell, threads=2), steps(cell), rounded=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("cell", CELLS)
def test_passes(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = steps(cell)
    monkeypatch.setattr(engine, "PASS_VALUES", 3 * 16 * 64)
    assert_close(steps(cell), whole)


def test_little_memory_makes_smaller_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    passes = engine.WorkerGradients._shared_passes

    def seen(self: engine.WorkerGradients, *arguments: object) -> torch.Tensor:
        losses = passes(self, *arguments)  # type: ignore[arg-type]
        sizes.append(self.pass_values)
        return losses

    monkeypatch.setattr(engine.WorkerGradients, "_shared_passes", seen)
    whole = steps("momentum")
    assert set(sizes) == {engine.PASS_VALUES}
    sizes.clear()
    monkeypatch.setattr(engine, "free_memory", lambda _: 2_000_000)
    assert_close(steps("momentum"), whole)
    assert 0 < max(sizes) < 16 * 64 * 9


COMPILED = [
    cell if cell in ("momentum", "dynabro") else pytest.param(cell, marks=pytest.mark.slow)
    for cell in CELLS
]


@pytest.mark.parametrize("cell", COMPILED)
@pytest.mark.thorough
def test_compiled(cell: str) -> None:
    if missing_tool():
        with pytest.raises(setup.SpecError, match="compile=on needs"):
            steps(cell, compile_="on")
    else:
        # blocks add up in another order
        assert_close(steps(cell, compile_="on"), steps(cell), within=1e-5, rounded=1e-3)


def test_the_run_records_how_it_was_computed() -> None:
    started = next(simulate(RunSpec(budget=20), compile="off", threads=1))
    assert isinstance(started, Started)
    versions = str(started.record["versions"])
    for fact in (
        '"compile":"off"',
        '"gradients":"shared pass"',
        '"pass_values":600000',
        '"threads":1',
    ):
        assert fact in versions
