"""How many runs at a time fit into the free memory, and what is told of those that do not."""

from __future__ import annotations

import contextlib

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.runs.executors import placement
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.backends import local
from dynabro_cli.runs.executors.backends.local.pool import Pool
from dynabro_cli.simulation import need
from dynabro_cli.simulation.need import Need

SMALL, LARGE = 1e9, 3e9


@pytest.fixture(autouse=True)
def _needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of momentum need 3 GB, others 1 GB, on four cores."""

    def need_of(run: Run, *_: object, **__: object) -> Need:
        return Need(
            LARGE if run.method.name == "momentum" else SMALL,
            0,
            "the messages [m, d]",
            "fewer --workers",
        )

    monkeypatch.setattr(need, "need_of", need_of)
    for module in (local, placement):
        monkeypatch.setattr(module, "cores", lambda: 4)


def runs(large: int, small: int) -> list[Run]:
    specs = [RunSpec(method="momentum", seed=seed) for seed in range(large)] + [
        RunSpec(seed=seed) for seed in range(small)
    ]
    return [resolve(spec) for spec in specs]


def fitted(
    free: float | None, given: list[Run], jobs: int | None = None, **options: bool
) -> int | None:
    """Return the number of runs at a time, without starting a process."""
    return places(Options(jobs=jobs, device="cpu", sweep="x", **options), free, given).options.jobs


def places(options: Options, free: float | None, given: list[Run]) -> Places:
    with contextlib.ExitStack() as stack:
        return local.places_of(options, free, Pool(), stack, given)


@pytest.mark.parametrize(
    ("number", "large", "small", "jobs", "expected"),
    [
        (None, 9, 9, 100, 100),  # nothing is known
        (4e9, 0, 9, None, 4),
        (3.9e9, 0, 9, None, 3),
        (5e9, 1, 9, None, 3),  # the large one may meet any two others
        (5e9, 2, 9, None, 1),  # the two large ones may meet
        (3e9, 0, 3, 8, 8),
    ],
)
def test_as_many_as_fit(
    number: float | None, large: int, small: int, jobs: int | None, expected: int | None
) -> None:
    assert fitted(number, runs(large, small), jobs) == expected


def test_more_than_fit_are_refused_with_the_number_that_does() -> None:
    with pytest.raises(
        SpecError,
        match=r"^jobs=4: 3 of these runs at a time fit into the free memory. Try: --jobs 3, or "
        r"--force$",
    ):
        fitted(5.5e9, runs(1, 9), 4)


@pytest.mark.parametrize("jobs", [None, 1, 4])
def test_a_run_that_does_not_fit_by_itself(jobs: int | None) -> None:
    with pytest.raises(SpecError) as error:
        fitted(2.5e9, runs(1, 9), jobs)
    (line,) = error.value.problems
    assert line.startswith(
        "memory: a run here needs about 3.0 GB, most of it for the messages [m, d], and 2.5 GB "
        "are free. "
    )
    assert line.endswith("Try: fewer --workers, or --force to begin all the same")


def test_one_run_and_forced_runs_are_not_measured_here() -> None:
    """The process that makes the only run compares its memory; so this process need not load
    torch.
    """
    found = places(Options(device="cpu"), 0, runs(1, 0))
    assert (found.options.jobs, found.backend.memory_check) == (4, "all")
    assert fitted(0, runs(1, 9), 4, force=True) == 4


def test_runs_that_differ_in_their_seed_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(
        need, "need_of", lambda run, *_, **__: measured.append(run) or Need(SMALL, 0, "", "")
    )
    fitted(4e9, runs(3, 50))
    assert len(measured) == 2
