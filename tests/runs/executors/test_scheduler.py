"""The scheduler on a back end without processes: what is sent where, and what becomes of it, step
by step.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, event

from dynabro_cli.core import events
from dynabro_cli.core.errors import InterruptedRunError, PreemptedError, RunError, SpecError
from dynabro_cli.runs.executors import backend
from dynabro_cli.runs.executors._api import ON_CPU, Failure, Options, Outcome, Sharing
from dynabro_cli.runs.executors.backend import Ended, Places, Printed
from dynabro_cli.runs.executors.sweep import make_all
from dynabro_cli.runs.executors.worker import Begun, Left, MemoryCheck, Misplaced, Request
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write import recorder
from dynabro_cli.runs.store.write.side_files import SideFiles
from dynabro_cli.runs.store.write.standing import read_standing
from tests.runs.executors.made_runs import Log, quadratic
from tests.runs.store.made import (
    change,
    checkpointed,
    evaluated,
    finished,
    read,
    rounds,
    started,
    totals,
)

Message = backend.Message | Ended
ROUNDS = 20
LAST = Failure | Left | Misplaced | events.Finished


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_for_writing(str(tmp_path / "results.db"))


def start_of(request: Request) -> events.Started:
    """The first event, from the checkpoint if there is one."""
    record = started(request.key, **request.spec).record
    return events.Started(
        request.key, record, None if request.resume is None else totals(ROUNDS // 2)
    )


def whole(request: Request) -> list[Message]:
    """The messages of a run in which nothing goes wrong."""
    first = 0 if request.resume is None else ROUNDS // 2
    return [
        Begun(),
        start_of(request),
        rounds(first, ROUNDS - 1),
        evaluated(ROUNDS),
        finished(ROUNDS),
    ]


def half(request: Request) -> list[Message]:
    return [Begun(), start_of(request), rounds(0, ROUNDS // 2 - 1)]


@dataclass
class Scripted:
    """A back end whose places send what a script says, one message each time that the scheduler
    waits.

    Attributes:
        script: The messages that answer a request, by seed; each request takes the next answer, and
            the last one stays.
        asked: What the scheduler has asked for, in order.
        patience: The time limits of the waits.
    """

    script: dict[int, list[Callable[[Request], Sequence[Message]]]] = field(default_factory=dict)
    places: int = 1
    maker: str = "clerk"
    memory_check: MemoryCheck = "all"
    checkpoint_resets_retries: bool = False
    slow_starts: int = 0
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    patience: list[float | None] = field(default_factory=list)
    on_wait: Callable[[], None] = lambda: None
    lasting: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.boxes: dict[int, deque[Message]] = {}
        self.requests: list[Request] = []
        self.starting, self.started = set(range(self.slow_starts)), set[int]()

    @property
    def capacity(self) -> int:
        return self.places

    def free(self, place: int) -> bool:
        return place not in self.lasting | self.started

    def start(self, place: int) -> bool:
        if place in self.starting:
            self.starting.remove(place)
            self.started.add(place)
            self.asked.append(("start", place))
            return False
        return True

    def send(self, place: int, request: Request) -> None:
        seed = request.spec["seed"]
        answers = self.script.get(seed, [whole])
        self.asked.append(("send", place, seed))
        self.requests.append(request)
        self.boxes[place] = deque((answers.pop(0) if len(answers) > 1 else answers[0])(request))

    def answer(self, place: int, ours: bool) -> None:
        self.asked.append(("answer", place, ours))
        if not ours and place in self.boxes:
            del self.boxes[place]

    def wait(self, seconds: float | None) -> None:
        self.patience.append(seconds)
        self.started.clear()
        self.on_wait()

    def collect(self) -> Iterator[tuple[int, Message]]:
        for place, box in list(self.boxes.items()):
            if box:
                message = box.popleft()
                if isinstance(message, Ended) or (not box and isinstance(message, LAST)):
                    del self.boxes[place]
                yield place, message

    def leave(self, places: Collection[int]) -> None:
        self.asked.append(("leave", set(places)))
        for place in places:
            self.boxes[place].extend([checkpointed(ROUNDS // 2), Left()])

    def kill(self, place: int) -> None:
        if place in self.boxes:
            self.asked.append(("kill", place))

    def reap(self, place: int) -> Iterator[backend.Message]:
        for message in self.boxes.pop(place, ()):
            if not isinstance(message, Ended):
                yield message

    def close(self) -> None:
        self.asked.append(("close",))

    def sent(self) -> list[tuple[int, int]]:
        """The places and seeds of the requests."""
        return [(asked[1], asked[2]) for asked in self.asked if asked[0] == "send"]


def make(
    engine: Engine, runs: int, places: Scripted, log: Any = None, files: Any = None, **options: Any
) -> list[Outcome]:
    chosen = Options(**{"device": "cpu", "threads": 1, "jobs": places.places} | options)
    return make_all(
        [quadratic(seed) for seed in range(runs)],
        engine,
        Places(chosen, ["cpu"], 4, places),
        log or Log(),
        read_standing(str(engine.url), chosen.sweep_row, chosen.rerun),
        files=files,
    )


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def stored(engine: Engine) -> list[tuple[Any, ...]]:
    return read(
        Path(str(engine.url.database)), "SELECT seed, status, rounds FROM runs ORDER BY seed"
    )


def test_runs_are_made_in_order_and_no_more_at_a_time_than_fit(engine: Engine) -> None:
    places = Scripted(places=2)
    log = Log()
    assert statuses(make(engine, 5, places, log)) == ["finished"] * 5
    assert places.sent() == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4)]
    assert places.asked[-1] == ("close",)
    assert stored(engine) == [(seed, "finished", ROUNDS) for seed in range(5)]
    assert log.of(3) == ["started", "Started", "RoundsDone", "Evaluated", "Finished", "finished"]
    assert {request.memory_check for request in places.requests} == {"all"}


def test_no_log_lies_beside_the_database_while_the_scheduler_waits(
    engine: Engine, tmp_path: Path
) -> None:
    """A database that is moved into the place of this one would be read with the log that it finds
    there.
    """
    places = Scripted(places=2)
    beside: list[set[str]] = []
    places.on_wait = lambda: beside.append(
        {path.name for path in tmp_path.iterdir() if "-wal" in path.name}
    )
    assert statuses(make(engine, 4, places)) == ["finished"] * 4
    assert len(beside) > 5
    assert set.union(*beside) == set()


def test_one_connection_stores_an_end_and_looks_for_the_next_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # else it commits once a second, too
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: 0.0))
    opened: list[Any] = []
    event.listen(engine, "connect", lambda connection, _record: opened.append(connection))
    counts = [0]
    for runs in (2, 12):  # the second time, ten of them are new
        make(engine, runs, Scripted())
        counts.append(len(opened) - sum(counts))
    # one for a run's claim, and one for its end and the next run
    assert counts[2] - counts[1] == (10 - 2) * 2


def test_nothing_is_sent_to_a_place_until_it_can_take_a_run(engine: Engine) -> None:
    places = Scripted(places=2, slow_starts=2)
    assert statuses(make(engine, 2, places)) == ["finished"] * 2
    assert places.asked[:4] == [("start", 0), ("start", 1), ("send", 0, 0), ("send", 1, 1)]


def test_a_place_that_is_not_free_yet_gets_no_run(engine: Engine) -> None:
    places = Scripted(places=2, lasting=frozenset({0}))

    def later() -> None:
        if len(places.requests) == 2:
            places.lasting = frozenset()

    places.on_wait = later
    assert statuses(make(engine, 4, places)) == ["finished"] * 4
    assert places.sent()[:2] == [(1, 0), (1, 1)]


def test_a_capacity_that_shrinks_holds_no_run_back(engine: Engine) -> None:
    lost = [lambda request: [*half(request), Ended("was lost")], whole]
    places = Scripted({1: lost}, places=2)

    def shrink() -> None:
        places.places = 1

    places.on_wait = shrink
    assert statuses(make(engine, 2, places, max_retries=1)) == ["finished"] * 2
    assert sorted(seed for _, seed in places.sent()) == [0, 1, 1]


@pytest.mark.parametrize(
    ("forgiving", "status", "attempts"), [(False, "failed", 3), (True, "finished", 5)]
)
def test_retries_are_counted_and_from_the_checkpoint_on_if_the_back_end_says_so(
    forgiving: bool, status: str, attempts: int, engine: Engine
) -> None:
    reached = itertools.count(1)

    def stops(request: Request) -> list[Message]:
        """A run of one round more than before, and its checkpoint."""
        done = next(reached)
        first = events.Started(
            request.key, start_of(request).record, totals(done - 1) if request.resume else None
        )
        return [Begun(), first, rounds(done - 1, done - 1), checkpointed(done), Ended("went home")]

    def rest(request: Request) -> list[Message]:
        first = events.Started(request.key, start_of(request).record, totals(4))
        return [Begun(), first, rounds(4, ROUNDS - 1), evaluated(ROUNDS), finished(ROUNDS)]

    places = Scripted({0: [stops] * 4 + [rest]}, checkpoint_resets_retries=forgiving)
    files = SideFiles.of(engine.url)
    (outcome,) = make(engine, 1, places, files=files, max_retries=2)
    assert (outcome.status, len(places.requests)) == (status, attempts)
    assert [request.resume for request in places.requests] == [None] + [b"state"] * (attempts - 1)
    if not forgiving:
        assert outcome.message == "its clerk went home (3 attempts)"
    lines = files.log(quadratic(0).key).read_text()
    assert lines.count("its clerk went home; the run is retried") == attempts - 1


def test_starts_that_fail_in_a_row_are_an_error_unless_they_do_not_count(engine: Engine) -> None:
    places = Scripted({seed: [lambda _: [Ended("went home")]] for seed in range(4)})
    match = r"^3 starts of a clerk in a row failed before a run began; the last clerk went home$"
    with pytest.raises(RunError, match=match):
        make(engine, 4, places)
    assert (len(places.requests), stored(engine)) == (3, [])
    lost = [lambda _: [Ended("was lost", counts=False)]] * 7
    places = Scripted({0: [*lost, whole]})
    assert statuses(make(engine, 1, places)) == ["finished"]
    assert len(places.requests) == 8


def test_a_run_that_was_sent_to_the_wrong_place_is_sent_again(engine: Engine) -> None:
    places = Scripted({0: [lambda _: [Misplaced()], whole]})
    assert statuses(make(engine, 2, places)) == ["finished"] * 2
    assert [seed for _, seed in places.sent()] == [0, 0, 1]


def test_a_failure_is_the_runs_own_and_ends_everything_if_asked(engine: Engine) -> None:
    bang = Failure("bang", "Traceback: bang", expected=False)
    fails = [lambda request: [*half(request), bang]]
    assert statuses(make(engine, 3, Scripted({1: fails}))) == ["finished", "failed", "finished"]
    assert stored(engine)[1] == (1, "failed", 10)
    places = Scripted({3: fails, 4: [half]}, places=2)
    outcomes = make(engine, 6, places, fail_fast=True)
    assert statuses(outcomes) == [
        "stored",
        "failed",
        "stored",
        "failed",
        "interrupted",
        "interrupted",
    ]


def test_output_goes_to_the_log_and_messages_after_the_end_do_not_count(engine: Engine) -> None:
    files = SideFiles.of(engine.url)
    late = [
        lambda request: [
            Begun(),
            Printed("noise"),
            *whole(request)[1:],
            rounds(20, 21),
            Printed("late"),
            Ended("left"),
        ]
    ]
    places = Scripted({0: late})
    log = Log()
    assert statuses(make(engine, 1, places, log, files)) == ["finished"]
    assert stored(engine) == [(0, "finished", ROUNDS)]
    text = files.log(quadratic(0).key).read_text()
    assert ("noise" in text, "late" in text) == (True, False)


def test_a_run_that_takes_too_long_is_ended_and_what_had_arrived_is_stored(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=1.0)
    monkeypatch.setattr("dynabro_cli.runs.executors.scheduler.time.monotonic", lambda: next(clock))
    forever = [lambda request: [*half(request), *[Printed("...")] * 500, evaluated(ROUNDS)]]
    places = Scripted({0: forever})
    first, second = make(engine, 2, places, timeout=200)
    assert (first.status, first.message) == ("failed", "timeout: it took longer than 200 s")
    assert second.status == "finished"
    assert ("kill", 0) in places.asked
    assert stored(engine) == [(0, "failed", 10), (1, "finished", ROUNDS)]
    path = Path(str(engine.url.database))
    assert read(
        path, "SELECT COUNT(*) FROM evaluations JOIN runs ON runs.id = run_id WHERE seed = 0"
    ) == [(1,)]


def test_a_run_that_another_takes_over_is_left_to_it_for_a_lease(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(str(engine.url.database))
    monkeypatch.setenv("DYNABRO_LEASE_SECONDS", "0.5")

    class Thief(Log):
        """Takes the run over, and is silent from then on."""

        def started(self, slot: int, run: Any) -> None:
            super().started(slot, run)
            starts.append(time.monotonic())

        def event(self, slot: int, run: Any, event: events.Event) -> None:
            super().event(slot, run, event)
            if self.of(0) == ["started", "Started", "RoundsDone"]:
                silence = "heartbeat_at = '2020-01-01 00:00:00.000000', heartbeat_clock = NULL"
                change(path, f"UPDATE runs SET owner = 'elsewhere:1:1:1', {silence}")

    starts: list[float] = []
    places = Scripted({0: [lambda request: [*whole(request), Printed("more")], whole]})
    log = Thief()
    taken = r"run 1 was taken over by another process \(.*\), which .* for 0.5 s at least"
    with pytest.warns(UserWarning, match=taken):
        assert statuses(make(engine, 1, places, log)) == ["finished"]
    assert starts[1] - starts[0] > 0.5  # however soon it would be free
    assert ("kill", 0) in places.asked
    assert log.of(0).count("Finished") == 1


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    before = (
        signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.signal(signal.SIGTERM, signal.SIG_DFL),
    )
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGTERM, before[1])


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, InterruptedRunError), (signal.SIGTERM, PreemptedError)]
)
def test_a_signal_lets_runs_hand_over_checkpoints(
    number: int, kind: type[Exception], engine: Engine
) -> None:
    waiting = [lambda _: [Begun()]]  # it has not begun to compute, and is ended at once
    places = Scripted({0: [half], 1: [half], 2: [waiting[0]]}, places=3)
    waits = itertools.count()

    def press() -> None:
        if next(waits) == 3:
            signal.raise_signal(number)

    places.on_wait = press
    with pytest.raises(
        kind, match="runs stored as interrupted: 2; the same command resumes from here"
    ):
        make(engine, 5, places)
    assert places.asked[-5:-1].count(("leave", {0, 1})) == 1
    assert stored(engine) == [(0, "interrupted", 10), (1, "interrupted", 10)]
    path = Path(str(engine.url.database))
    assert read(path, "SELECT COUNT(checkpoint) FROM runs") == [(2,)]

    again = Scripted(places=3)
    assert statuses(make(engine, 5, again)) == ["finished"] * 5
    assert [request.resume for request in again.requests] == [b"state", b"state", None, None, None]


# --- GPUs


class Together(Scripted):
    """A back end that notes the device and the seeds in progress whenever it gets a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seeds: dict[int, int] = {}
        self.together: list[list[int]] = []

    def send(self, place: int, request: Request) -> None:
        super().send(place, request)
        self.seeds[place] = request.spec["seed"]
        self.together.append(sorted(self.seeds[place] for place in self.boxes))


def on_gpu(
    engine: Engine,
    runs: int,
    places: Scripted,
    devices: Sequence[str],
    sharing: Any,
    mps: str | None = None,
) -> Any:
    options = Options(jobs=places.places, threads=1)
    given = Places(options, devices, places.places, places, sharing=sharing, mps=mps)
    listed = [quadratic(seed) for seed in range(runs)]
    return make_all(listed, engine, given, Log(), read_standing(str(engine.url), None, "none"))


def test_runs_that_fill_a_gpu_never_share_it_with_others(engine: Engine) -> None:
    """Seeds 0, 3, 6 take a third of a GPU each, 1, 4, 7 fill half of one each, and 2, 5, 8 compute
    on the CPU.
    """
    kinds = [Sharing(True, False, 3), Sharing(True, True, 2), ON_CPU]
    places = Together(places=5)
    outcomes = on_gpu(
        engine, 9, places, ["cuda:0"] * 4 + ["cpu"], lambda run: kinds[run.spec.seed % 3]
    )
    assert statuses(outcomes) == ["finished"] * 9
    gpu = [[seed for seed in seeds if seed % 3 < 2] for seeds in places.together]
    assert all(len({seed % 3 for seed in seeds}) <= 1 for seeds in gpu)
    assert [0, 3, 6] in gpu
    assert max(len(seeds) for seeds in gpu if seeds and seeds[0] % 3 == 1) == 2
    assert {request.spec["seed"] for request in places.requests if request.device == "cpu"} == {
        2,
        5,
        8,
    }
    assert {
        request.device for request in places.requests if request.spec["seed"] not in (2, 5, 8)
    } == {"cuda:0"}


def test_two_gpus_make_two_kinds(engine: Engine) -> None:
    kinds = [Sharing(True, False, 3), Sharing(True, True, 1)]
    places = Together(places=4)
    assert (
        statuses(
            on_gpu(engine, 2, places, ["cuda:0", "cuda:1"] * 2, lambda run: kinds[run.spec.seed])
        )
        == ["finished"] * 2
    )
    assert {request.spec["seed"]: request.device for request in places.requests} == {
        0: "cuda:0",
        1: "cuda:1",
    }


BROKEN = Failure(
    "AcceleratorError: CUDA error: unspecified launch failure", "Traceback", expected=False
)
BANG = Failure("ValueError: bang", "Traceback", expected=False)


@pytest.mark.parametrize("end", [Ended("went home"), BROKEN])
def test_a_run_that_ends_with_the_service_of_its_gpu_is_tried_once_without(
    end: Any, engine: Engine
) -> None:
    def ends(request: Request) -> list[Message]:
        return [*half(request), end]

    places = Scripted({0: [ends, whole], 1: [ends]}, places=1)
    first, second = on_gpu(engine, 2, places, ["cuda:0"], lambda _: Sharing(True), "folder")
    assert (first.status, second.status) == ("finished", "failed")
    assert [(request.spec["seed"], request.mps) for request in places.requests] == [
        (0, "folder"),
        (0, "folder/none"),
        (1, "folder"),
        (1, "folder/none"),
    ]
    log = SideFiles.of(engine.url).log(quadratic(0).key).read_text()
    assert log.count("; the run is retried without CUDA's multi-process service") == 1


@pytest.mark.parametrize(
    ("sharing", "mps", "failure"),
    [
        (ON_CPU, "folder", BROKEN),
        (Sharing(True), None, BROKEN),
        (Sharing(True), "folder", BANG),
    ],
)
def test_other_failures_are_not_tried_again(
    sharing: Sharing, mps: str | None, failure: Failure, engine: Engine
) -> None:
    places = Scripted({0: [lambda request: [*half(request), failure]]}, places=1)
    assert statuses(on_gpu(engine, 1, places, ["cuda:0"], lambda _: sharing, mps)) == ["failed"]
    assert [request.mps for request in places.requests] == [mps]


DOUBT = Failure("replay 8 of a CUDA graph differs", "replay 8 of a CUDA graph differs", True)
DOUBT = replace(DOUBT, doubtful=True)


def test_a_run_whose_numbers_are_doubtful_starts_over_without_graphs(engine: Engine) -> None:
    """Its checkpoint and rows go; a second time, the run has failed."""

    def doubts(request: Request) -> list[Message]:
        return [*half(request), checkpointed(ROUNDS // 2), DOUBT]

    places = Scripted({0: [doubts, whole], 1: [doubts]})
    files = SideFiles.of(engine.url)
    assert statuses(make(engine, 2, places, files=files)) == ["finished", "failed"]
    assert [(request.resume, request.compile) for request in places.requests] == [
        (None, "auto"),
        (None, "off"),
    ] * 2
    path = Path(str(engine.url.database))
    number = "SELECT count(*) FROM rounds JOIN runs ON run_id = id WHERE seed = 0"
    assert read(path, number) == [(ROUNDS,)]
    assert read(path, "SELECT status, rounds FROM runs ORDER BY seed")[0] == ("finished", ROUNDS)
    log = files.log(quadratic(0).key).read_text()
    assert log.count("differs; the run starts over with --compile off") == 1


def test_a_run_that_ends_before_it_starts_over_has_no_checkpoint(engine: Engine) -> None:
    """Ctrl-C before the second attempt has started; the first one has written a checkpoint."""
    answers = [lambda _: [*half(_), checkpointed(ROUNDS // 2), DOUBT], lambda _: [Begun()]]
    places = Scripted({0: answers})

    def stop() -> None:
        if len(places.requests) == 2:
            signal.raise_signal(signal.SIGINT)

    places.on_wait = stop
    with pytest.raises(InterruptedRunError):
        make(engine, 1, places)
    again = Scripted()
    assert statuses(make(engine, 1, again)) == ["finished"]
    assert again.requests[0].resume is None


NO_IMAGE = Failure(
    "AcceleratorError: CUDA error: no kernel image is available\nline 2", "Traceback", False
)
OCCUPIED = Failure("memory: a run here needs about 2.7 GB", "", True, 2, occupied=True)


def test_errors_of_a_gpu_that_hit_every_run_end_the_sweep(engine: Engine) -> None:
    """Three runs of ten, and perhaps one beside them; the others stay in the queue."""
    fails = [lambda request: [*half(request), NO_IMAGE]]
    places = Scripted(dict.fromkeys(range(10), fails), places=2)
    match = (
        r"^3 runs failed on cuda:0 before an evaluation: AcceleratorError: CUDA error: no kernel "
        r"image is available\. The other runs stay in the queue\. Try: --device cpu, or "
        r"--compile off; with --retry-failed$"
    )
    with pytest.raises(RunError, match=match) as raised:
        on_gpu(engine, 10, places, ["cuda:0"], lambda _: Sharing(True, most=2))
    assert raised.value.exit_code == 70
    statuses_ = [status for _, status, _ in stored(engine)]
    assert statuses_.count("failed") in (3, 4)
    assert set(statuses_) <= {"failed", "interrupted"}
    assert len(places.requests) <= 5


def fails_with(reason: str, *, expected: bool = False) -> Callable[[Request], Sequence[Message]]:
    return lambda request: [*half(request), Failure(reason, "", expected)]


def late(request: Request) -> list[Message]:
    return [*half(request), evaluated(ROUNDS // 2), NO_IMAGE]


@pytest.mark.parametrize(
    "answers",
    [
        [fails_with(f"RuntimeError: CUDA error: {number}") for number in range(6)],
        [fails_with("ValueError: bang")] * 6,
        [late] * 6,
        [fails_with("CUDA error: x"), fails_with("CUDA error: x"), whole] * 2,
        [fails_with("memory: too little", expected=True)] * 6,
    ],
    ids=["different", "not of a GPU", "after an evaluation", "some work", "expected"],
)
def test_other_errors_do_not_end_the_sweep(answers: list[Any], engine: Engine) -> None:
    places = Scripted({seed: [answer] for seed, answer in enumerate(answers)})
    assert len(on_gpu(engine, 6, places, ["cuda:0"], lambda _: Sharing(True))) == 6
    assert len(places.requests) == 6


def test_a_gpu_that_does_not_compute_ends_the_sweep_and_nothing_is_stored(engine: Engine) -> None:
    reason = "device=cuda:0: this GPU does not compute (CUDA error: device is busy)"
    fails = [lambda _: [Begun(), Failure(reason, reason, True, 2)]]
    with pytest.raises(RunError, match="CUDA error: device is busy"):
        on_gpu(
            engine,
            10,
            Scripted(dict.fromkeys(range(10), fails)),
            ["cuda:0"],
            lambda _: Sharing(True),
        )
    assert stored(engine) == []


def test_one_bad_gpu_beside_a_good_one_is_found(engine: Engine) -> None:
    """Runs that finish on another GPU do not make up for it."""
    bad = set[int]()

    def answer(request: Request) -> Sequence[Message]:
        if request.device == "cuda:1":
            bad.add(request.spec["seed"])
            return [*half(request), NO_IMAGE]
        return whole(request)

    places = Scripted({seed: [answer] for seed in range(30)}, places=2)
    with pytest.raises(RunError, match="3 runs failed on cuda:1"):
        on_gpu(engine, 30, places, ["cuda:0", "cuda:1"], lambda _: Sharing(True))
    assert len(bad) == 3


def test_a_place_whose_gpu_is_occupied_is_given_up_and_no_run_fails(engine: Engine) -> None:
    """The second process finds that another user has taken the memory meanwhile."""
    places = Scripted({1: [lambda _: [Begun(), OCCUPIED], whole]}, places=3)
    outcomes = on_gpu(engine, 6, places, ["cuda:0"], lambda _: Sharing(True, most=3))
    assert statuses(outcomes) == ["finished"] * 6
    used = [place for place, seed in places.sent()]
    assert used.count(1) == 1
    assert ("kill", 1) in places.asked or places.sent().count((1, 1)) == 1


def test_without_a_place_the_sweep_says_why_and_nothing_has_failed(engine: Engine) -> None:
    occupied = [lambda _: [Begun(), OCCUPIED]]
    places = Scripted(dict.fromkeys(range(9), occupied), places=2)
    with pytest.raises(SpecError, match=r"^memory: a run here needs about 2.7 GB$"):
        on_gpu(engine, 9, places, ["cuda:0"], lambda _: Sharing(True, most=2))
    assert stored(engine) == []
    assert len(places.requests) == 2


def test_runs_share_a_gpu_by_what_it_can_hold(engine: Engine) -> None:
    places = Together(places=4)
    sharing = Sharing(True, most=2, fewer=(("cuda:1", 1),))
    on_gpu(engine, 8, places, ["cuda:0", "cuda:1"], lambda _: sharing)
    assert max(map(len, places.together)) == 3
