"""Trusted data at the server: whose samples they are, what gradient a rule gets, and that nothing
else changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dynabro_cli.components.aggregators._api import SERVER, Aggregator
from dynabro_cli.components.partitions._api import server_samples
from dynabro_cli.components.tasks._api import Images
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.problem.shares import for_server, hold_out
from dynabro_cli.simulation.setup import simulate_run

DIGITS: dict[str, Any] = {
    "task": "digits",
    "model": "logistic",
    "budget": 12,
    "batch_size": 4,
    "workers": 5,
    "byzantine": 1,
    "eval_every": 6,
    "seed": 3,
    "data": "iid:server=50",
}
QUADRATIC: dict[str, Any] = {
    "task": "quadratic",
    "attack": "shift:lambda=1",
    "budget": 60,
    "batch_size": 2,
    "seed": 1,
}


def digits() -> Images:
    return resolve(RunSpec(**DIGITS)).parts.task.load()  # type: ignore[return-value]


def whole(run: Run) -> list[events.Event]:
    return list(simulate_run(run, device="cpu", compile="off"))


def numbers(run: Run) -> list[Any]:
    found: list[Any] = []
    for event in whole(run):
        if isinstance(event, events.RoundsDone):
            found += [
                (one.round, one.gradient_norm, one.aggregation_error, one.acceptance)
                for one in event.rounds
            ]
        elif isinstance(event, events.Evaluated):
            found.append((event.test_accuracy, event.test_loss, event.train_loss, event.gap))
    return found


def watched(run: Run) -> tuple[Run, list[Tensor]]:
    """The run with a rule that writes down the server's gradient, and then aggregates as before."""
    seen, rule = list[Tensor](), run.parts.aggregator

    def aggregate(
        messages: Tensor, state: dict[str, Tensor], batches: int | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(state[SERVER].clone())
        own = {name: value for name, value in state.items() if name != SERVER}
        return rule.aggregate(messages, own, batches)

    made = Aggregator(aggregate, rule.kappa, by_number=rule.by_number, needs_server=True)
    return run.with_parts(run.parts._replace(aggregator=made)), seen


# --- whose samples


def test_the_server_takes_samples_and_the_rest_is_the_workers() -> None:
    images = digits()
    rest, taken = for_server(images, 50, Streams(3))
    assert taken is not None
    assert len(taken[1]) == 50
    assert len(rest.train_labels) == len(images.train_labels) - 50
    both = torch.cat([rest.train_images, taken[0]]).flatten(1)
    assert torch.equal(both.sort(0).values, images.train_images.flatten(1).sort(0).values)
    again, other = for_server(images, 50, Streams(3))[1], for_server(images, 50, Streams(4))[1]
    assert again is not None
    assert other is not None
    assert torch.equal(again[0], taken[0])
    assert not torch.equal(other[0], taken[0])
    assert for_server(images, 0, Streams(3)) == (images, None)


def test_held_out_samples_are_the_same_with_and_without_a_server() -> None:
    images = digits()
    rest, held = hold_out(images, 0.1)
    left, taken = for_server(rest, 50, Streams(3))
    assert held is not None
    assert taken is not None
    assert len(left.train_labels) + len(taken[1]) + len(held[1]) == len(images.train_labels)


def test_nothing_is_left_to_the_workers() -> None:
    with pytest.raises(SpecError, match=r"server=1437 leaves no sample of 1437 to the workers"):
        for_server(digits(), 1437, Streams(0))
    with pytest.raises(
        SpecError,
        match=r"batch_size=4 is larger than the 2 training samples of 'digits' that server=1435",
    ):
        resolve(RunSpec(**DIGITS | {"data": "iid:server=1435"}))
    both = DIGITS | {"data": "iid:server=1300", "validation": 0.1}
    with pytest.raises(
        SpecError,
        match=r"larger than the 0 .* that validation=0.1 leaves and server=1300 leave. Try: a "
        r"smaller s",
    ):
        resolve(RunSpec(**both))


def test_every_partition_has_it_and_keys_of_runs_without_it_stay() -> None:
    assert [
        server_samples(text)
        for text in ("iid", "sorted:server=3", "gamma:similarity=1,server=4", "nonsense")
    ] == [
        0,
        3,
        4,
        0,
    ]
    plain, zero = (
        resolve(RunSpec(**DIGITS | {"data": text}))
        for text in ("dirichlet:alpha=1", "dirichlet:alpha=1,server=0")
    )
    assert plain.key == zero.key
    assert plain.spec.data == zero.spec.data == "dirichlet:alpha=1"
    assert "server" not in plain.mapping["data"]
    some = resolve(RunSpec(**DIGITS | {"data": "dirichlet:alpha=1,server=9"}))
    assert some.key != plain.key
    assert some.spec.data == "dirichlet:alpha=1,server=9"


def test_workers_of_any_rule_train_on_the_same_samples() -> None:
    """The counts by worker and label, which are stored, leave the server's samples out."""
    data = {"data": "gamma:similarity=0.5,server=37"}
    counts = [
        whole(resolve(RunSpec(**DIGITS | data, aggregator=rule)))[0].labels
        for rule in ("fltrust", "cwtm")
    ]  # type: ignore[union-attr]
    assert counts[0] == counts[1]
    assert sum(count for *_, count in counts[0]) == 1437 - 37


# --- its gradient


def test_on_images_it_is_the_gradient_of_its_own_mini_batch_at_the_first_point() -> None:
    run, seen = watched(resolve(RunSpec(**DIGITS, method="sgd", aggregator="cwtm")))
    whole(run)
    images = digits()
    taken = for_server(images, 50, Streams(3))[1]
    assert taken is not None
    places = Streams(3).generator("server", 0, 0).integers(50, size=4)
    mean, std = torch.tensor(images.mean)[:, None, None], torch.tensor(images.std)[:, None, None]
    inputs = (taken[0][places] / images.scale - mean) / std
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(Streams(3).integer("init", 0))
        model = run.model.build(images.shape)  # type: ignore[union-attr]
    loss = F.cross_entropy(model(inputs), taken[1][places])
    expected = torch.cat(
        [one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))]
    )
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("no_probe")
def test_at_level_j_it_is_the_mean_over_its_first_mini_batches() -> None:
    """The point of a round is one for all its levels, so that differences of the server's gradients
    are noise alone.
    """
    run, seen = watched(resolve(RunSpec(**QUADRATIC, method="dynabro:jmax=3", aggregator="cwmed")))
    rounds = [
        one for event in whole(run) if isinstance(event, events.RoundsDone) for one in event.rounds
    ]
    objective, streams, corrected = run.parts.task.load(), Streams(1), 0

    def noise(round_: int, prefix: int) -> Tensor:
        draws = [
            objective.noise(streams.generator("server", round_, c), 2).mean(0)
            for c in range(prefix)
        ]  # type: ignore[union-attr]
        return torch.stack(draws).mean(0)

    left = iter(seen)
    for one in rounds:
        first = next(left)
        if one.cost == 1:
            continue
        corrected += 1
        for prefix in (one.cost // 2, one.cost):
            torch.testing.assert_close(
                next(left) - first, noise(one.round, prefix) - noise(one.round, 1)
            )
    assert corrected > 3
    assert next(left, None) is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields",
    [
        {"method": "momentum"},
        {"method": "dynabro:jmax=3"},
        {"method": "mu2-sgd"},
        {"method": "local-steps", "workers": 6},
        {"method": "demoa", "participation": 0.6},
        {"method": "sgd", "model": "mlp:hidden=8,dropout=0.5"},
        {"method": "momentum", "attack": "optimal-alie", "attack_entry": "state"},
        {
            "method": "dynabro:jmax=3",
            "attack": "optimal-ipm",
            "clock": "computation",
            "switching": "periodic:K=3",
        },
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_it_changes_nothing_else(fields: dict[str, Any]) -> None:
    """A rule that gets the server's gradient, and ignores it, has the numbers of a rule that gets
    none.
    """
    run = resolve(RunSpec(**DIGITS | fields, aggregator="cwtm"))
    asked, seen = watched(run)
    assert numbers(asked) == numbers(run)
    assert seen
    assert all(bool(one.isfinite().all()) and bool(one.any()) for one in seen)


@pytest.mark.usefixtures("no_probe")
def test_mu2_sgd_has_it_at_the_query_point() -> None:
    """On the quadratic the server's gradient without its noise is the gradient at x_t, which the
    evaluations tell.
    """
    fields = QUADRATIC | {"budget": 7, "eval_every": 1, "method": "mu2-sgd", "aggregator": "cwmed"}
    run, seen = watched(resolve(RunSpec(**fields)))
    points = {event.round: event.x for event in whole(run) if isinstance(event, events.Evaluated)}
    objective, streams = run.parts.task.load(), Streams(1)
    assert len(seen) == 4
    for round_, found in enumerate(seen):
        noise = objective.noise(streams.generator("server", round_, 0), 2).mean(0)  # type: ignore[union-attr]
        here = objective.gradient(torch.tensor(points[round_], dtype=torch.float64))  # type: ignore[union-attr]
        torch.testing.assert_close(found, here + noise)


# --- the rule


def test_a_rule_that_needs_it_says_so_before_anything_runs() -> None:
    with pytest.raises(SpecError) as caught:
        resolve(RunSpec(aggregator="fltrust"))
    assert caught.value.problems == [
        (
            "aggregator 'fltrust' needs samples at the server, and data=iid leaves it none. Try: "
            "--data iid:server=100"
        )
    ]
    with pytest.raises(
        SpecError, match=r"'ctma:rule=fltrust' needs .* Try: --data dirichlet:alpha=1,server=100"
    ):
        resolve(
            RunSpec(aggregator="ctma:rule=fltrust", data="dirichlet:alpha=1", pre_aggregators="nnm")
        )
    with pytest.raises(
        SpecError,
        match=r"task 'quadratic' has no samples for the server, and data=iid:server=5. Try: "
        r"--data iid",
    ):
        resolve(RunSpec(task="quadratic", attack="shift:lambda=1", data="iid:server=5"))


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["fltrust", "ctma:rule=fltrust", "nnm+fltrust"])
def test_it_learns_under_an_attack(rule: str) -> None:
    """Four of nine send five times the opposite of the honest mean, so that the mean of all points
    uphill.
    """
    fields = DIGITS | {
        "budget": 120,
        "batch_size": 16,
        "workers": 9,
        "byzantine": 4,
        "learning_rate": 0.1,
        "eval_every": 120,
    }
    spec = RunSpec(
        **fields, method="sgd", switching="static", attack="ipm:epsilon=5", aggregator=rule
    )
    last = [event for event in whole(resolve(spec)) if isinstance(event, events.Evaluated)][-1]
    assert last.test_accuracy is not None
    assert last.test_accuracy > 0.8


def test_rounds_with_a_cohort_have_it() -> None:
    run = resolve(
        RunSpec(**DIGITS | {"budget": 60, "workers": 6}, method="marina-pp", aggregator="fltrust")
    )
    assert all(np.isfinite(one[1]) for one in numbers(run) if isinstance(one[0], int))
