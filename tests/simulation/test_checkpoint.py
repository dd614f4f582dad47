"""A run that goes on from a checkpoint is the run that was never interrupted, to the last bit."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynabro_cli import __version__
from dynabro_cli.components.aggregators._api import REGISTRY as AGGREGATORS
from dynabro_cli.components.attacks._api import REGISTRY as ATTACKS
from dynabro_cli.components.pre_aggregators._api import REGISTRY as PRE_AGGREGATORS
from dynabro_cli.core import events
from dynabro_cli.core.errors import CheckpointError
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.checkpoint import Checkpoint
from dynabro_cli.simulation.loop import FLUSH_ROUNDS
from dynabro_cli.simulation.setup import simulate_run
from tests.parameters import TRACE

DIGITS: dict[str, Any] = {
    "task": "digits",
    "model": "mlp:hidden=8",
    "budget": 24,
    "eval_every": 10,
    "batch_size": 4,
    "workers": 9,
    "byzantine": 3,
}
QUADRATIC: dict[str, Any] = {"task": "quadratic", "budget": 24, "eval_every": 10}
REMEMBER = {
    "centered-clipping",
    "attack bit-flip",
    "attack fang-trimmed-mean",
    "attack gaussian",
    "attack momentum-tailored",
    "attack poisonedfl",
    "attack rop",
}
"""The rules and attacks that have a state."""


class Wanted:
    """Wants checkpoints after rounds of these numbers, counted from 1."""

    def __init__(self, *rounds: int) -> None:
        self._rounds, self._asked = rounds, 0

    def __call__(self) -> bool:
        self._asked += 1
        return self._asked in self._rounds


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(run: Run, **how: Any) -> list[events.Event]:
    return list(simulate_run(run, threads=1, compile="off", **how))


def rows(happened: list[events.Event]) -> list[object]:
    """What is stored: rounds one by one, evaluations, and the end."""
    stored: list[object] = []
    for event in happened:
        stored += event.rounds if isinstance(event, events.RoundsDone) else []
        stored += (
            [event]
            if isinstance(event, events.Evaluated | events.Finished | events.Diverged)
            else []
        )
    return stored


def changes(happened: list[events.Event]) -> list[events.Identity]:
    """What is stored of who is Byzantine, beside that."""
    return [
        change
        for event in happened
        if isinstance(event, events.RoundsDone)
        for change in event.identities
    ]


def interrupted(run: Run, *rounds: int) -> tuple[list[events.Event], events.Checkpointed]:
    """The events of a run up to its last checkpoint, and that; what would come after it is not
    computed.
    """
    happened: list[events.Event] = []
    left = len(rounds)
    for event in simulate_run(run, threads=1, compile="off", wanted=Wanted(*rounds)):
        left -= isinstance(event, events.Checkpointed)
        if not left:
            assert isinstance(event, events.Checkpointed)
            return happened, event
        happened.append(event)
    raise AssertionError(f"a checkpoint is missing of {rounds}")


def test_as_if_never_interrupted(spec: RunSpec, after: int) -> None:
    run = resolve(spec)
    whole = made(run)
    clean = rows(whole)
    before, checkpoint = interrupted(run, after)
    again = made(run, resume=checkpoint.data)
    assert isinstance(again[0], events.Started)
    assert again[0].resumed == checkpoint.totals
    assert again[0].resumed.rounds == after
    assert repr(rows(before) + rows(again)) == repr(clean)  # as NaN is not equal to itself
    assert changes(before) + changes(again) == changes(whole)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every method, aggregator and attack once, and what else has a state of its own."""
    if "after" not in metafunc.fixturenames:
        return
    required = {"momentum-tailored": "momentum-tailored:lambda=1", "shift": "shift:lambda=1"}
    rules = [name for name in AGGREGATORS.entries() if name != "mfm"]
    fitting = {
        "bulyan": "bulyan:f=1",
        "centered-clipping": "centered-clipping:tau=1",
        "dnc": "dnc:b=50",
    }
    specs = {
        name: RunSpec(**DIGITS, method="dynabro:jmax=2", aggregator=fitting.get(name, name))
        for name in rules
    }
    specs["fltrust"] = dataclasses.replace(specs["fltrust"], data="iid:server=50")
    for name in PRE_AGGREGATORS.entries():
        chain = {"clipping": "clipping:c=1", "bucketing": "bucketing+bucketing:s=1"}.get(name, name)
        fields = {"byzantine": 2, "aggregator": "signguard"}
        specs[f"before a rule, {name}"] = RunSpec(
            **DIGITS | fields, method="dynabro:jmax=2", pre_aggregators=chain
        )
    for name in ATTACKS.entries():
        fields = (
            {"method": "momentum", "switching": "rotating"}
            if name == "momentum-tailored"
            else {"method": "sgd"}
        )
        task = QUADRATIC if name in required else DIGITS
        # what rules make of it is no matter here
        task = task | {"byzantine": 0} if name == "nan" else task
        specs[f"attack {name}"] = RunSpec(**task | fields, attack=required.get(name, name))
    specs |= {
        "mfm": RunSpec(**DIGITS, method="dynabro:filter=option2,noise_bound=5"),
        "measured noise": RunSpec(**DIGITS, method="dynabro:filter=option1,noise_bound=auto"),
        "momentum": RunSpec(**DIGITS, method="momentum"),
        "heavy ball": RunSpec(
            **DIGITS, method="momentum:beta=0.99,form=heavy-ball", pre_aggregators="nnm"
        ),
        "byzantine-sgd": RunSpec(**DIGITS, method="byzantine-sgd:threshold_B=5", attack="sf"),
        "safeguard": RunSpec(**DIGITS, method="safeguard:scale=0.02,T0=3,T1=7", attack="sf"),
        "safeguard, single": RunSpec(
            **DIGITS, method="safeguard:guards=single,T0=4,threshold0=0.2", attack="sf"
        ),
        "marina-pp": RunSpec(**DIGITS, method="marina-pp:batches=5,C=4"),
        "marina-pp, all samples": RunSpec(
            **DIGITS | {"batch_size": 100, "budget": 40},  # a full gradient costs several
            method="marina-pp",
        ),
        "local-steps": RunSpec(**DIGITS, method="local-steps:H=2", clock="computation"),
        "nsgdm": RunSpec(**DIGITS, method="nsgdm"),
        "demoa": RunSpec(**DIGITS, method="demoa", participation=0.6, attack_entry="message"),
        "mu2-sgd": RunSpec(**DIGITS, method="mu2-sgd", clock="computation"),
        "adagrad-norm": RunSpec(**DIGITS, method="sgd", lr_rule="adagrad-norm"),
        "drop": RunSpec(**DIGITS, method="sgd", lr_drop="0.2:0.1"),
        "within rounds": RunSpec(
            **DIGITS, clock="computation", switching="bernoulli:p=0.1,D=5,delta_max=0.4"
        ),
        "each computation": RunSpec(
            **DIGITS,
            method="dynabro:jmax=2",
            attack="mixed:parts=gaussian/alie",
            attack_entry="computation",
            switching="mid-round:K=2",
            clock="computation",
        ),
        "a bias from the first round": RunSpec(
            **QUADRATIC | {"budget": 12},
            method="momentum:start=gradient",
            attack="momentum-tailored:lambda=1",
            switching="rotating",
        ),
        "kept attacks": RunSpec(**DIGITS, method="momentum", attack_entry="state"),
        "an attack that learns": RunSpec(
            **DIGITS, method="momentum", attack="mimic:target=learned,warmup=5"
        ),
        "an attack that sees memory": RunSpec(
            **DIGITS, method="momentum", attack="optimal-ipm:evals=4"
        ),
        "labels within rounds": RunSpec(
            **DIGITS,
            clock="computation",
            attack="label-flip",
            switching="bernoulli:p=0.1,D=5,delta_max=0.4",
        ),
        "attacks of several kinds": RunSpec(
            **DIGITS,
            clock="computation",
            attack="mixed:parts=label-flip/mimic:target=learned/gaussian/optimal-alie:evals=3",
        ),
        "bf16": RunSpec(**DIGITS, method="momentum", precision="bf16"),
        "dirichlet": RunSpec(
            **DIGITS, method="momentum", data="dirichlet:alpha=0.3", validation=0.2
        ),
        "sorted": RunSpec(**DIGITS, method="dynabro:jmax=2", data="sorted"),
        "adaptive": RunSpec(
            **DIGITS, method="momentum", switching="adaptive:below=9,patience=4", aggregator="gm"
        ),
        "evade": RunSpec(**DIGITS, method="momentum", switching="evade:block=2"),
        "trace": RunSpec(
            **DIGITS,
            method="dynabro",
            switching=f"trace:file={TRACE},repeat=true",
            clock="computation",
        ),
        "on-level": RunSpec(
            **DIGITS, method="dynabro:jmax=2", switching="on-level:level=1,K=2", clock="computation"
        ),
        "round-robin": RunSpec(**DIGITS, method="momentum", switching="round-robin:K=2"),
        "participation": RunSpec(**DIGITS, method="momentum", participation=0.6, attack="alie"),
        "diverging": RunSpec(**DIGITS, method="sgd", learning_rate=300, weight_decay=1.0),
    }
    stateless = {*rules, *(f"attack {name}" for name in ATTACKS.entries())} - REMEMBER
    cases = [
        pytest.param(spec, 3, marks=[pytest.mark.thorough] if name in stateless else [])
        for name, spec in specs.items()
    ]
    metafunc.parametrize(("spec", "after"), cases, ids=list(specs))


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["cnn-digits"])
def test_networks_with_statistics_of_their_own_and_several_interruptions(model: str) -> None:
    run = resolve(RunSpec(**DIGITS | {"model": model, "budget": 60}, method="momentum"))
    clean = rows(made(run))
    stored: list[object] = []
    data = None
    for after in (1, FLUSH_ROUNDS - 1, FLUSH_ROUNDS, 7):
        happened = made(run, wanted=Wanted(after), resume=data)
        cut = next(
            index for index, event in enumerate(happened) if isinstance(event, events.Checkpointed)
        )
        stored += rows(happened[:cut])
        data = happened[cut].data  # type: ignore[union-attr]
    assert repr(stored + rows(made(run, resume=data))) == repr(clean)


def test_a_schedule_that_follows_the_run_goes_on_where_it_was() -> None:
    """Interrupted within a row of rejections, one of which is in the checkpoint: without it the
    next set would come later.
    """
    run = resolve(
        RunSpec(
            **DIGITS,
            method="momentum",
            switching="adaptive:below=9,patience=4",
            aggregator="gm",
            seed=1,
        )
    )
    before, checkpoint = interrupted(run, 7)
    told = changes(before) + changes(made(run, resume=checkpoint.data))
    assert [change.tick for change in told[:5]] == [0, 4, 8, 12, 16]
    code = next(
        event.record["code_digests"] for event in before if isinstance(event, events.Started)
    )
    assert Checkpoint.decode(checkpoint.data, run.spec, code).state.switching == {
        "draws": torch.tensor(1),
        "rejected": torch.tensor(3),
    }


def test_a_checkpoint_of_other_data_is_not_resumed(tmp_path: Path) -> None:
    """Other labels, and other inputs of another size: the run starts over and says why."""
    x, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2
    run = resolve(
        RunSpec(task="npz:file=d.npz", method="momentum", workers=3, byzantine=1, budget=40),
        tmp_path,
    )
    np.savez(tmp_path / "d.npz", X=x, y=y)
    data = next(
        e.data
        for e in made(run, data_dir=tmp_path, wanted=Wanted(7))
        if isinstance(e, events.Checkpointed)
    )
    for arrays in ({"X": x, "y": 1 - y}, {"X": x[:, :3], "y": y}, {"X": x, "y": y}):
        np.savez(tmp_path / "d.npz", **arrays)
        started = next(simulate_run(run, data_dir=tmp_path, threads=1, resume=data))
        assert isinstance(started, events.Started)
        kept = arrays["y"][0] == 0 and arrays["X"].shape[1] == 4
        assert started.unused == (
            None if kept else "the checkpoint was made with another version of the data"
        )
        assert (started.resumed is not None) == kept


def test_a_run_resumes_with_other_vector_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    run = resolve(RunSpec(**QUADRATIC, method="momentum"))
    (_, checkpoint) = interrupted(run, 5)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "Z80")
    started = made(run, resume=checkpoint.data)[0]
    assert isinstance(started, events.Started)
    assert started.resumed is not None
    assert '"cpu_capability":"Z80"' in str(started.record["versions"])


def test_checkpoints_change_nothing() -> None:
    run = resolve(RunSpec(**DIGITS, method="momentum"))
    happened = made(run, wanted=lambda: True)
    # none after the last round
    assert sum(isinstance(event, events.Checkpointed) for event in happened) == 23
    assert repr(rows(happened)) == repr(rows(made(run)))


def test_where_a_run_diverges_does_not_depend_on_checkpoints() -> None:
    run = resolve(RunSpec(**DIGITS, method="sgd", learning_rate=1e30))
    clean = made(run)
    assert isinstance(clean[-1], events.Diverged)
    assert repr(rows(made(run, wanted=lambda: True))) == repr(rows(clean))


def rewritten(data: bytes, whole: dict[str, Any] | None = None, **changes: object) -> bytes:
    content = torch.load(io.BytesIO(data), weights_only=True) | changes if whole is None else whole
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


class Harmful:
    """What a pickle can hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def zipped(content: Any) -> bytes:
    """A file of torch's with a pickle of another protocol than its own."""
    file = io.BytesIO()
    torch.save(content, file, pickle_protocol=4)
    return file.getvalue()


def changed_in(content: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """The content of a checkpoint with another value at a place such as ``state.round``."""
    name, _, rest = place.partition(".")
    return content | {name: changed_in(content[name], rest, value) if rest else value}


WRONG_VALUES = [
    ("totals", "a text"),
    ("totals", [1, 2]),
    ("totals.rounds", -3),
    ("totals.rounds", 3.0),
    ("totals.rounds", 4),
    ("totals.switches", True),
    ("totals.squared_gradients", "0.5"),
    ("state", None),
    ("state.round", -1),
    ("state.round", 10**30),
    ("state.spent", None),
    ("state.mask", torch.zeros(4, dtype=torch.bool)),
    ("state.mask", torch.zeros(9)),
    ("state.mask", [True] * 9),
    ("state.method", None),
    ("state.method", {"momentum": [0.0]}),
    ("state.method", {1: torch.zeros(2)}),
    ("state.attack", {"other": torch.zeros(9)}),
    ("x", torch.zeros(3)),
    ("x", torch.zeros(())),  # it could be copied to any shape
    ("x", None),
    ("x", "x"),
    ("buffers", torch.zeros(5)),
    ("squares", 1.0),
    ("squares", torch.zeros(2)),
    ("loss", torch.zeros((), dtype=torch.int64)),
    ("loss_count", torch.zeros(0)),
    ("noise_bound", "1"),
]


@functools.cache
def checkpointed() -> tuple[Run, bytes, str]:
    """A run, a checkpoint of it after three rounds, and what is stored of it."""
    run = resolve(RunSpec(**DIGITS, method="momentum", attack="gaussian"))
    _, checkpoint = interrupted(run, 3)
    return run, checkpoint.data, repr(rows(made(run)))


@pytest.mark.parametrize(
    ("place", "value"),
    WRONG_VALUES,
    ids=[str(n) for n in range(len(WRONG_VALUES))],
)
def test_a_checkpoint_with_a_value_of_another_kind_is_not_used(place: str, value: Any) -> None:
    run, data, whole = checkpointed()
    content = torch.load(io.BytesIO(data), weights_only=True)
    happened = made(run, resume=rewritten(b"", changed_in(content, place, value)))
    assert isinstance(happened[0], events.Started)
    assert happened[0].resumed is None
    assert happened[0].unused is not None
    assert happened[0].unused.startswith("the checkpoint")
    assert repr(rows(happened)) == whole


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_gone_on_from_is_left_alone(tmp_path: Path) -> None:
    run = resolve(RunSpec(**DIGITS, method="momentum"))
    before, checkpoint = interrupted(run, 3)
    data = checkpoint.data
    other = resolve(dataclasses.replace(run.spec, seed=1))
    harm = rewritten(data, totals=Harmful(tmp_path / "harm"))
    code = next(
        event.record["code_digests"] for event in before if isinstance(event, events.Started)
    )
    made_by = {"format": 1, "dynabro": __version__, "torch": str(torch.__version__)}
    bad = {
        "no checkpoint": b"x",
        "nothing": b"",
        "half": data[: len(data) // 2],
        "another version": rewritten(data, made_by={"format": 1, "dynabro": "0", "torch": "1"}),
        "other code": rewritten(data, made_by=made_by | json.loads(code) | {"engine": "0" * 12}),
        "other data": rewritten(
            data, made_by=made_by | json.loads(code) | {"data/digits": "0" * 12}
        ),
        "code of which nothing is known": rewritten(data, made_by=made_by),
        "too little": rewritten(data, state={}),
        "another shape": rewritten(data, totals=None),
        "harmful": harm,
        "a pickle of another protocol": pickle.dumps({"a": 1}, protocol=4),
        "a file of torch's with another protocol": zipped({"a": 1}),
    }
    for name, wrong in bad.items():
        with pytest.raises(CheckpointError):
            Checkpoint.decode(wrong, run.spec, code)
        started = next(simulate_run(run, threads=1, resume=wrong))
        assert isinstance(started, events.Started), name
        assert started.resumed is None, name
    assert not (tmp_path / "harm").exists()
    with pytest.raises(CheckpointError, match="another run"):
        Checkpoint.decode(data, other.spec, code)
    assert Checkpoint.decode(data, run.spec, code).totals.rounds == 3
