"""Expansion of a sweep into its runs, or into a list of all problems of its points."""

from __future__ import annotations

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.plan import PlannedRuns, plan
from dynabro_cli.experiment.grid.sweep_file import MOST_RUNS, Sweep, parse_sweep
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, set_fields, shipped
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from tests.tables import each_row


def planned(text: str, *settings: str) -> PlannedRuns:
    return plan(set_fields(parse_sweep("name: x\n" + text, "x.yaml"), settings))


def problems(text: str, *settings: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        planned(text, *settings)
    return caught.value.problems


def test_seeds_vary_slowest_and_the_last_axis_fastest() -> None:
    text = "grid: {method: [sgd, dynabro], switching: [static, 'periodic:K=5']}\nseeds: [4, 2]\n"
    specs = [run.spec for run in planned(text).runs]
    assert [(spec.seed, spec.method, spec.switching) for spec in specs] == [
        (seed, method, switching)
        for seed in (4, 2)
        for method in ("sgd", "dynabro")
        for switching in ("static", "periodic:K=5")
    ]


def test_runs_are_those_of_single_specs() -> None:
    text = (
        "base: {task: quadratic, budget: 5e1, learning_rate: 1e-3}\n"
        "grid:\n  rates: [{method: momentum, learning_rate: 2e-3}, {method: sgd}]\nseeds: 0..1\n"
    )
    expected = [
        resolve(RunSpec(task="quadratic", budget=50, method=method, learning_rate=rate, seed=seed))
        for seed in (0, 1)
        for method, rate in (("momentum", 2e-3), ("sgd", 1e-3))
    ]
    assert list(planned(text).runs) == expected


def test_an_empty_sweep_is_the_default_run() -> None:
    assert planned("").runs == (resolve(RunSpec()),)


def test_points_that_are_one_run_are_run_once() -> None:
    text = (
        "base: {method: sgd}\n"
        "grid:\n"
        "  learning_rate: [5e-3, 0.005, auto]\n"
        "  switching: ['periodic:K=10', 'periodic: K = 10.0', static]\n"
        "  task: [quadratic, 'quadratic:sigma=0.5,dimension=2', "
        "'quadratic:dimension=2.0,sigma=0.50']\n"
    )
    found = planned(text)
    assert [run.spec.switching for run in found.runs] == ["periodic:K=10", "static"]
    assert (found.duplicates, found.excluded) == (25, 0)


def test_excluded_points_are_left_out() -> None:
    text = (
        "base: {task: quadratic, lr_drop: '0.8:0.1'}\n"
        "grid: {method: [sgd, momentum], switching: ['periodic:K=10', static], byzantine: [0, 1]}\n"
        "exclude: [{method: sgd, switching: 'periodic: K = 10.0', lr_drop: '0.80:0.10'}, "
        "{byzantine: 0, workers: 3}]\n"
    )
    found = planned(text)
    assert [(run.spec.method, run.spec.switching, run.spec.byzantine) for run in found.runs] == [
        ("sgd", "static", 1),
        ("momentum", "periodic:K=10", 1),
        ("momentum", "static", 1),
    ]
    assert (found.duplicates, found.excluded) == (0, 5)


@each_row(
    ("field", "value"),
    [
        ("seed", "1"),
        ("learning_rate", "5e-3"),
        ("pre_aggregators", "nnm:f=auto"),
        ("budget", "3e3"),
        ("method", "momentum:beta=0.90"),
    ],
)
def test_any_field_can_exclude(field: str, value: str) -> None:
    """Also one that the point leaves to the task's default, and one that is written otherwise."""
    base = "base: {task: quadratic, method: momentum, aggregator: cwmed, pre_aggregators: nnm}\n"
    text = f"{base}exclude: [{{{field}: '{value}'}}]\n"
    if field == "seed":
        assert [run.spec.seed for run in planned(text + "seeds: 0..2\n").runs] == [0, 2]
    else:
        assert problems(text) == ["x: exclude leaves no point of 1. Try: a shorter exclude"]


def test_points_that_are_excluded_need_not_run() -> None:
    text = "base: {workers: 5}\ngrid: {byzantine: [1, 2, 3]}\nexclude: [{byzantine: 3}]\n"
    assert [run.spec.byzantine for run in planned(text).runs] == [1, 2]


def test_points_that_cannot_run_are_told_together() -> None:
    text = (
        "base: {workers: 5}\n"
        "grid:\n  byzantine: [1, 3]\n  rates: [{method: sgd}, {method: dynabro, batch_size: "
        "2000}]\nseeds: 0..1\n"
    )
    second, first = problems(text)
    assert first.startswith("byzantine=3 of workers=5 is not legal: 2f < m must hold")
    assert first.endswith(" (4 of 8 points, first byzantine=3, method=sgd, seed=0)")
    assert second.startswith("batch_size=2000 is larger than the 1437 training samples")
    assert second.endswith(
        " (4 of 8 points, first byzantine=1, method=dynabro, batch_size=2000, seed=0)"
    )


def test_a_problem_of_all_points_and_of_the_only_one() -> None:
    assert problems("grid: {byzantine: [9, 8]}\nbase: {workers: 3}\n")[0].endswith(
        " (1 of 2 points, first byzantine=9)"
    )
    assert problems("seeds: 0..1\nbase: {batch_size: 1438}\n")[0].endswith(
        " (all 2 points, first seed=0)"
    )
    assert problems("base: {batch_size: 1438}\n")[0].endswith("Try: --batch-size 16")


def test_a_wrong_component_is_told_once_with_its_place() -> None:
    text = (
        "base:\n  attack: sff\n"
        "grid:\n  aggregator:\n    - cwmt\n    - krum:f=x\n  method: [sgd, dynabro]\n"
        "exclude: [{switching: periodic}]\nseeds: 0..4\n"
    )
    starts = [
        "x.yaml:3: unknown attack 'sff' (did you mean 'sf'?)",
        "x.yaml:6: unknown aggregator 'cwmt' (did you mean 'cwtm'?)",
        "x.yaml:7: aggregator 'krum': f=x is not legal",
        "x.yaml:9: switching strategy 'periodic' needs K=",
        "--set pre_aggregators=nmn: unknown pre-aggregator 'nmn' (did you mean 'nnm'?)",
    ]
    found = problems(text, "pre_aggregators=nmn")
    assert len(found) == len(starts), found
    assert all(any(line.startswith(start) for line in found) for start in starts), found


def test_a_grid_that_is_too_large() -> None:
    text = "grid: {workers: [3, 5, 7, 9, 11], budget: [1, 2, 3]}\nseeds: 0..9999\n"
    assert problems(text) == [
        f"x: it has 150,000 points, and a sweep may have {MOST_RUNS:,} points; make several of it"
    ]


def test_points_are_counted_before_any_is_made() -> None:
    """10^16 of them; what is wrong with components is not looked for either."""
    axes = "".join(
        f"  axis {k}:\n" + "".join(f"    - {{{name}: {v}}}\n" for v in range(1, 101))
        for k, name in enumerate(FREE)
    )
    (line,) = problems(f"grid:\n{axes}")
    assert (
        line
        == f"x: it has {100 ** len(FREE):,} points, and a sweep may have {MOST_RUNS:,} points; "
        "make several of it"
    )


FREE = (
    "workers",
    "byzantine",
    "budget",
    "batch_size",
    "eval_every",
    "learning_rate",
    "weight_decay",
    "seed",
)


def test_a_parameter_that_is_what_auto_comes_to_makes_no_other_run() -> None:
    text = "grid: {aggregator: [cwtm, 'cwtm:f=8', 'cwtm:f=7'], attack: [alie, 'alie:z=auto']}\n"
    found = planned(text)
    assert [run.spec.aggregator for run in found.runs] == ["cwtm", "cwtm:f=7"]
    assert found.duplicates == 4


@pytest.mark.parametrize("name", ["cwtm", "cwtm:f=8", "cwtm:f=auto"])
def test_exclusion_is_of_runs_however_a_parameter_is_written(name: str) -> None:
    text = "grid: {aggregator: [cwtm, 'cwtm:f=8', 'cwtm:f=7', gm], byzantine: [8, 7]}\n"
    found = planned(text + f"exclude: [{{aggregator: '{name}', byzantine: 8}}]\n")
    left = [("cwtm", 7), ("cwtm:f=8", 7), ("cwtm:f=7", 8), ("gm", 8), ("gm", 7)]
    assert sorted((run.spec.aggregator, run.spec.byzantine) for run in found.runs) == sorted(left)
    assert (found.duplicates, found.excluded, found.idle_exclusions) == (1, 2, ())


def test_a_chain_is_excluded_however_it_is_written() -> None:
    text = (
        "base: {pre_aggregators: nnm+nnm}\ngrid: {byzantine: [7, 8]}\nexclude: "
        "[{pre_aggregators: 'nnm:f=8+nnm'}]\n"
    )
    assert [run.spec.byzantine for run in planned(text).runs] == [7]


def test_exclusions_that_leave_nothing_out() -> None:
    """One that leaves out what another one does already is not idle, nor one whose points could not
    run.
    """
    text = (
        "base: {workers: 5}\ngrid: {byzantine: [1, 2, 3], method: [sgd, momentum]}\n"
        "exclude:\n  - {byzantine: 3}\n  - {byzantine: 3, workers: 5}\n  - {byzantine: 2, "
        "method: sgd}\n"
        "  - {method: sgd, byzantine: 2, attack: sf}\n  - {byzantine: 4}\n  - {method: "
        "'momentum:beta=0.8', seed: 0}\n"
    )
    found = planned(text)
    assert (len(found.runs), found.excluded) == (3, 3)
    end = ", so that this entry of exclude leaves nothing out"
    assert found.idle_exclusions == (
        f"x.yaml:9: no point of the grid has byzantine: 4{end}",
        f"x.yaml:10: no point of the grid has method: momentum:beta=0.8, seed: 0{end}",
    )
    made = Sweep("made", exclude=({"workers": "3"},))
    assert plan(made).idle_exclusions == (f"made: no point of the grid has workers: 3{end}",)


# --- what comes with the program

COUNTS = {
    "mnist-sf-cwtm": 4 * 5 * 5,
    "mnist-alie-gm": 4 * 5 * 5,
    "cifar10-ipm-cwmed": 2 * 3 * 3 * 5,
    "momentum-fails-gap": 2 * 5 * 3 * 2 * 20,
    "demo": 3 * 2,
    "digits-periodic": 4 * 5 * 5,
}


@each_row("name", shipped())
def test_a_shipped_sweep_has_no_problem(name: str) -> None:
    found = plan(load_sweep(name))
    assert found.sweep.name == name
    assert found.sweep.description
    assert found.runs
    assert (found.duplicates, found.idle_exclusions) == (0, ())
    assert len(found.runs) == found.sweep.runs  # which 'dynabro list sweeps' shows
    assert len(found.runs) == COUNTS.get(name, len(found.runs))


@pytest.mark.thorough
def test_details_belong_to_other_figures() -> None:
    keys = {name: {run.key for run in plan(load_sweep(name)).runs} for name in shipped()}
    assert keys["training-details"] < keys["mnist-sf-cwtm"] | keys["cifar10-ipm-cwmed"]


@each_row(
    "name",
    [name for name in shipped() if name.startswith(("mnist-sf", "mnist-alie-gm", "cifar10-ipm"))],
)
def test_the_papers_settings(name: str) -> None:
    """Table 2, and the learning rates of Appendix J."""
    mnist, alie = name.startswith("mnist"), "alie" in name
    for run in plan(load_sweep(name)).runs:
        spec = run.spec
        assert (spec.workers, spec.batch_size, spec.budget) == (
            (17, 32, 5000) if mnist else (25, 64, 8000)
        )
        assert (spec.lr_drop, spec.weight_decay) == ("0.8:0.1" if mnist else "0.75:0.1", 1e-4)
        assert spec.learning_rate == (0.05 if run.method.name == "dynabro" and not alie else 0.01)
        assert spec.byzantine == (8 if mnist else 12)


def test_the_same_grid_on_images_of_ones_own() -> None:
    sweep = set_fields(
        load_sweep("cifar10-ipm-cwmed"), ["task=image-folder:name=cifar10-jpeg,like=cifar10"]
    )
    assert {run.spec.model for run in plan(sweep).runs} == {"cnn-cifar"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in shipped() if len(load_sweep(name).seeds) > 1])
def test_another_seed_changes_nothing_else(name: str) -> None:
    """A point is resolved for its first seed only; its other seeds are the runs that a sweep of
    that seed alone has.
    """
    last = load_sweep(name).seeds[-1]
    found = [run for run in plan(load_sweep(name)).runs if run.spec.seed == last]
    alone = plan(load_sweep(name, [f"seeds={last}"])).runs
    assert found == list(alone)
    assert [run.key for run in found] == [run.key for run in alone]
