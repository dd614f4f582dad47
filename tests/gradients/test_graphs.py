"""Capture and replay, with a recorder of calls in place of CUDA."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dynabro_cli.gradients import graphs
from dynabro_cli.gradients.engine import WorkerGradients
from dynabro_cli.gradients.graphs import Capture, GraphedGradients
from tests.gradients.worker_by_worker import batch_of, registered


def recorder(log: list[str], fault: float = 0.0) -> Capture:
    """Capture that replays by running again, into the same result; ``fault`` is added to what comes
    out.
    """

    def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        log.append("capture")
        result = run().clone()

        def start() -> None:
            log.append("replay")
            result.copy_(run() + fault)

        return start, result

    return capture


def pair(
    model: nn.Module, capture: Capture
) -> tuple[WorkerGradients, WorkerGradients, GraphedGradients]:
    """An engine to compare with, and one that is behind graphs, on one model."""
    plain, engine = WorkerGradients(model, 3), WorkerGradients(model, 3)
    return plain, engine, GraphedGradients(engine, capture)


def test_a_shape_is_replayed_from_its_second_time_on() -> None:
    log: list[str] = []
    plain, engine, graphed = pair(registered("mlp"), recorder(log))
    expected = {
        0: [],
        1: [],
        2: ["capture", "replay"],
        3: ["capture", "replay"],
        4: ["replay"],
        5: ["replay"],
    }
    for call, size in enumerate((4, 2, 4, 2, 4, 2)):
        log.clear()
        inputs, labels = batch_of(3, size, (3, 16, 16), seed=call)
        losses = graphed(inputs.float(), labels, 2, ())
        assert log == expected[call]
        torch.testing.assert_close(losses, plain(inputs.float(), labels, 2, ()))
        torch.testing.assert_close(engine.matrix, plain.matrix)
    assert graphed.state == "on: 2 shapes, 2 replays"


def test_the_state_tells_what_has_been_captured_so_far() -> None:
    _, _, graphed = pair(registered("mlp"), recorder([]))
    inputs, labels = batch_of(3, 2, (3, 16, 16))
    states = []
    for _ in range(4):
        states.append(graphed.state)
        graphed(inputs.float(), labels, 1, ())
    no, yes = "no shape has come twice", "on: 1 shapes, 0 replays"
    assert states == [no, no, yes, "on: 1 shapes, 1 replays"]


@pytest.mark.thorough
def test_fewer_workers_and_other_batches_are_other_shapes() -> None:
    log: list[str] = []
    plain, engine, graphed = pair(registered("cnn-cifar"), recorder(log))
    inputs, labels = batch_of(3, 4, (3, 16, 16))
    for workers, batches in (
        (3, 1),
        (2, 1),
        (3, 2),
        (3, 1),
        (2, 1),
        (3, 2),
        (3, 2),
        (2, 1),
        (3, 1),
    ):
        graphed(inputs[:workers].float(), labels[:workers], batches, ())
        plain(inputs[:workers].float(), labels[:workers], batches, ())
        torch.testing.assert_close(engine.matrix[:workers], plain.matrix[:workers])
        torch.testing.assert_close(engine.statistics[:workers], plain.statistics[:workers])
    assert log.count("capture") == 3


REFUSED = "operation not permitted when stream is capturing"


def failing(_: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    raise RuntimeError(f"{REFUSED}\nIts second line.")


def failing_late(_: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A capture that ends with another error, as in torch."""
    try:
        raise RuntimeError(REFUSED)
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def wrong(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A capture whose replay does nothing."""
    return lambda: None, run()


@pytest.mark.parametrize(
    ("capture", "state"),
    [
        (failing, f"off: RuntimeError: {REFUSED}"),
        (failing_late, f"off: RuntimeError: {REFUSED}"),
        (wrong, "off: the replay differs"),
    ],
)
def test_what_cannot_be_captured_is_computed_plainly(capture: Capture, state: str) -> None:
    plain, engine, graphed = pair(registered("mlp"), capture)
    for call in range(4):
        inputs, labels = batch_of(3, 2, (3, 16, 16), seed=call)
        losses = graphed(inputs.float(), labels, 1, ())
        torch.testing.assert_close(losses, plain(inputs.float(), labels, 1, ()))
        torch.testing.assert_close(engine.matrix, plain.matrix)
    assert graphed.state == state


def test_loops_are_left_alone() -> None:
    log: list[str] = []
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 5))
    _, _, graphed = pair(model, recorder(log))
    inputs, labels = batch_of(3, 4, (3, 2, 2))
    for _ in range(3):
        graphed(inputs.float(), labels, 1, range(3))
    assert log == []
    assert graphed.state == "off: loop over workers"


def test_a_replay_draws_other_masks_with_other_seeds() -> None:
    log: list[str] = []
    plain, engine, graphed = pair(
        nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 5)), recorder(log)
    )
    inputs, labels = batch_of(3, 4, (3, 2, 2))
    found = []
    for seed in (0, 6, 12, 18, 12):
        graphed(inputs.float(), labels, 2, range(seed, seed + 6))
        if seed:  # the first call is the engine's, whose masks on a CPU come from generators
            plain(inputs.float(), labels, 2, torch.arange(seed, seed + 6))
            torch.testing.assert_close(engine.matrix, plain.matrix)
            found.append(engine.matrix.clone())
    assert log == ["capture", "replay", "replay", "replay", "replay"]
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[1], found[2])


def test_one_shape_that_cannot_be_captured_leaves_the_others() -> None:
    log: list[str] = []
    good = recorder(log)

    def sometimes(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        return good(run) if len(run()) == 2 else failing(run)

    _, _, graphed = pair(registered("mlp"), sometimes)
    for _ in range(3):
        for workers in (3, 2):
            inputs, labels = batch_of(workers, 2, (3, 16, 16))
            graphed(inputs.float(), labels, 1, ())
    assert log == ["capture", "replay", "replay"]
    assert (
        graphed.state
        == f"on: 1 shapes, 1 replays; 1 computed plainly, the last one: RuntimeError: {REFUSED}"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["losses", "statistics"])
def test_a_replay_that_forgets_losses_or_statistics_is_not_used(part: str) -> None:
    _, engine, graphed = pair(registered("cnn-cifar"), lambda run: forgetful(run, engine, part))
    inputs, labels = batch_of(3, 4, (3, 16, 16))
    for _ in range(2):
        losses = graphed(inputs.float(), labels, 1, range(3))
    assert graphed.state == "off: the replay differs"
    assert bool(losses.all())
    assert bool(engine.statistics.any())


def forgetful(
    run: Callable[[], Tensor], engine: WorkerGradients, part: str
) -> tuple[Callable[[], None], Tensor]:
    """A capture whose replay has no losses, or no statistics."""
    result = run().clone()

    def start() -> None:
        before = engine.statistics.clone()
        losses = run()
        if part == "losses":
            result.copy_(losses * 0)
        else:
            result.copy_(losses)
            engine.statistics.copy_(before)

    return start, result


def test_gradients_that_are_not_finite_do_not_switch_a_shape_off() -> None:
    log: list[str] = []
    _, engine, graphed = pair(registered("mlp"), recorder(log))
    inputs, labels = batch_of(3, 2, (3, 16, 16))
    for value in (1.0, float("nan"), 1.0, 1.0):
        graphed(inputs.float() * value, labels, 1, ())
    assert log == ["capture", "replay", "replay"]
    assert graphed.state == "on: 1 shapes, 1 replays"
    assert bool(engine.matrix.isfinite().all())


@pytest.mark.parametrize(
    ("most", "captured", "state"),
    [
        (6, 0, "off: large passes"),
        (7, 1, "on: 1 shapes, 1 replays; 1 computed plainly, the last one: large passes"),
    ],
)
def test_large_passes_are_computed_plainly(
    most: int, captured: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    _, _, graphed = pair(registered("mlp"), recorder(log))
    monkeypatch.setattr(graphs, "GRAPH_VALUES", most * 3 * 16 * 16)
    for samples in (7, 8) * 3:
        inputs, labels = batch_of(1, samples, (3, 16, 16))
        graphed(inputs.float(), labels, 1, ())
    assert log.count("capture") == captured
    assert graphed.state == state


def test_nothing_is_captured_if_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    plain, engine, graphed = pair(registered("mlp"), recorder(log))
    monkeypatch.setattr(GraphedGradients, "_fits", lambda *_: False)
    inputs, labels = batch_of(3, 2, (3, 16, 16))
    for _ in range(3):
        graphed(inputs.float(), labels, 1, ())
    plain(inputs.float(), labels, 1, ())
    torch.testing.assert_close(engine.matrix, plain.matrix)
    assert log == []
    assert graphed.state == "off: memory"
