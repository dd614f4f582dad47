"""``--log``: trackers get the evaluations of runs in progress, and cannot harm the runs."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dynabro_cli
from dynabro_cli.core.errors import DynabroError
from dynabro_cli.runs.executors import live_log
from dynabro_cli.runs.trackers import Described
from tests.cli.conftest import Dynabro
from tests.faults.processes import of_place, within
from tests.own import fresh
from tests.runs.search.made import SMALL
from tests.runs.store.made import read
from tests.tables import each_row

TOOLS = ("tensorboard:tb", "mlflow:sqlite:///m.db", "wandb:tried")
Curve = list[tuple[int, float]]
RUN = ("run", "--task", "quadratic", "--budget", "60", "--eval-every", "20")
DIGITS = ("--task", "digits", "--model", "logistic", "--method", "sgd", "--eval-every", "50")


def stored(name: str) -> dict[str, Curve]:
    """The curve of each stored run, by its key's beginning."""
    curves: dict[str, Curve] = {}
    for key, budget, value in read(
        "results.db",
        f"SELECT substr(run_key, 1, 10), evaluations.budget, {name} FROM evaluations JOIN runs ON "
        "runs.id = run_id ORDER BY runs.id, round",
    ):
        curves.setdefault(key, []).append((budget, value))
    return curves


def in_tensorboard(name: str, group: str = "runs") -> dict[str, Curve]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves: dict[str, Curve] = {}
    for folder in Path("tb", group).iterdir():
        log = EventAccumulator(str(folder)).Reload()
        curves[folder.name] = [(point.step, point.value) for point in log.Scalars(name)]
    return curves


def in_mlflow(name: str, group: str = "runs") -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    with closing(sqlite3.connect("m.db")) as connection:
        for key, step, value in connection.execute(
            "SELECT runs.name, step, value FROM metrics JOIN runs USING (run_uuid) JOIN "
            "experiments USING (experiment_id) WHERE key = ? AND experiments.name = ? ORDER BY "
            "metrics.timestamp, step",
            (name, group),
        ):
            curves.setdefault(key, []).append((step, value))
    return curves


def in_wandb(name: str, _: str = "") -> dict[str, Curve]:
    """Read offline runs: a log of records in blocks, as LevelDB writes it."""
    from wandb.proto import wandb_internal_pb2

    curves: dict[str, Curve] = {}
    for path in sorted(Path("wandb").glob("offline-run-*/run-*.wandb")):
        data, place, record = path.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if 32768 - place % 32768 < 7:
                place += 32768 - place % 32768
                continue
            length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
            record += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind not in (1, 4):
                continue
            message = wandb_internal_pb2.Record()
            message.ParseFromString(record)
            record = b""
            for item in message.history.item:
                if name in (item.key, *item.nested_key):
                    point = (message.history.step.num, float(json.loads(item.value_json)))
                    curves.setdefault(path.stem.removeprefix("run-"), []).append(point)
    return curves


READ = {"tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}


def equal(tool: str, name: str, group: str = "runs") -> None:
    """Check that a tracker has the stored curves, each step once and in order."""
    expected = stored(name)
    assert expected
    # W&B's process writes its file after the end of ours
    within(
        20,
        lambda: sum(map(len, READ[tool](name, group).values())) == sum(map(len, expected.values())),
    )
    logged = READ[tool](name, group)
    assert logged.keys() == expected.keys()
    for key, curve in expected.items():
        assert [step for step, _ in logged[key]] == [step for step, _ in curve], tool
        assert [value for _, value in logged[key]] == pytest.approx(
            [value for _, value in curve], rel=1e-6
        )


SHOWN = [TOOLS[0], *(pytest.param(tool, marks=pytest.mark.thorough) for tool in TOOLS[1:])]


@pytest.mark.parametrize("text", SHOWN)
def test_a_tracker_has_the_stored_curve(
    text: str, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    tool = text.partition(":")[0]
    pytest.importorskip(tool)
    outcome = dynabro(*RUN, "--quiet", "--log", text, "--tag", "good", "--note", "mine")
    assert (outcome.code, outcome.err) == (0, "")
    equal(tool, "gap")
    if tool == "mlflow":
        with closing(sqlite3.connect("m.db")) as connection:
            assert connection.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]
            parameters = dict(connection.execute("SELECT key, value FROM params"))
            tags = dict(connection.execute("SELECT key, value FROM tags"))
            final = connection.execute("SELECT value FROM metrics WHERE key = 'final_gap'")
            assert final.fetchall() == read("results.db", "SELECT final_gap FROM runs")
        assert {"task", "rule", "switching.K"} <= parameters.keys()
        assert (tags["good"], tags["mlflow.note.content"]) == ("true", "mine")


def test_stored_runs_are_not_logged(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    spec = {"task": "quadratic", "budget": 60}
    key = dynabro_cli.run(spec | {"seed": 1}, quiet=True)["run_key"]
    dynabro_cli.run(spec | {"seed": 1}, quiet=True, log=["tensorboard:tb"])
    assert not Path("tb").exists()
    sweep = {"name": "mine", "base": spec, "seeds": [0, 1]}
    for _ in range(2):
        dynabro_cli.sweep(sweep, jobs=0, quiet=True, log=["tensorboard:tb"])
        (name,) = in_tensorboard("gap", "mine")
        assert not key.startswith(name)
        assert len(list(Path("tb/mine", name).iterdir())) == 2


def test_two_jobs_and_python(dynabro: Dynabro) -> None:
    """Several runs at a time, a metric of a plugin's name, and ``log`` of ``dynabro_cli.sweep``."""
    pytest.importorskip("tensorboard")
    dynabro_cli.sweep(
        {"name": "mine", "base": {"task": "quadratic", "budget": 60}, "seeds": [0, 1, 2, 3]},
        "results.db",
        jobs=2,
        quiet=True,
        log=["tensorboard:tb", "tensorboard:tb"],
    )
    assert len(stored("gap")) == 4
    equal("tensorboard", "gap", "mine")


def test_a_search(dynabro: Dynabro) -> None:
    """The runs of trials and repetitions are logged under the search's name."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("optuna")
    Path("small.yaml").write_text(SMALL)
    words = ("search", "small.yaml", "--set", "trials=4", "--quiet", "--log", "tensorboard:tb")
    assert dynabro(*words).code == 0
    assert len(stored("gap")) > 8
    equal("tensorboard", "gap", "small")


@each_row(
    ("text", "code", "problem"),
    [
        ("tensorbord:x", 2, "log=tensorbord: not a tool (did you mean 'tensorboard'?). Try: --log"),
        ("x:http://me:secret@host", 2, "log=x: not a tool. Try: --log tensorboard:DIR"),
        ("tensorboard", 2, "log=tensorboard: the place is missing. Try: --log tensorboard:DIR"),
        ("tensorboard:", 2, "log=tensorboard: the place is missing"),
        ("mlflow:sqlite:///m.db", 2, "log=mlflow: it needs the package mlflow. Try: pip install"),
        ("tensorboard:file", 73, "log=tensorboard:file: file is not a folder"),
    ],
)
def test_what_is_refused(
    text: str, code: int, problem: str, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    Path("file").write_text("")
    for words in (
        RUN,
        ("sweep", "mnist-sf-cwtm", "--dry-run"),
        ("search", "worst-adversary", "--dry-run"),
    ):
        outcome = dynabro(*words, "--log", text)
        assert (outcome.code, len(outcome.problems)) == (code, 1), outcome
        assert outcome.problems[0].startswith(problem)
        assert "secret" not in outcome.err
        assert not Path("results.db").exists()


FAKE = """
import sys, time, types
def step(name):
    if name == {where!r}:
        {what}
class MlflowException(Exception):
    pass
class MlflowClient:
    def __init__(self, place):
        self.place = place
        step("begin")
    create_experiment = get_metric_history = update_run = lambda self, *_: None
    search_runs = lambda self, *_, **__: []
    def create_run(self, *_):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"))
    def log_batch(self, *_, params=(), metrics=()):
        step("log" if metrics else "parameters")
    def set_terminated(self, *_):
        step("end")
step("import")
exceptions = entities = sys.modules[__name__]
Param = Metric = lambda *_: None
sys.modules["mlflow.exceptions"] = sys.modules["mlflow.entities"] = exceptions
"""
"""A package ``mlflow`` that does ``what`` at one of its steps."""
RAISES = 'raise OSError("no route to sqlite://me:pass word@host/x?key=token, pass word, token")'
PLACE = "mlflow:sqlite://me:pass word@host/x?key=token"
SLEEPS = "time.sleep(1000)"
BUSY = "'x' * 10**9 == 'x' * 10**9 + 'y'; sum(range(10**12))"
"""A call of native code."""
BREAKS = """
from dynabro_cli.plugins import attack

@attack("breaks")
def breaks(own, byzantine):
    raise ValueError("too late")
"""


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (RAISES, "no route to sqlite://***@host/x?key=***, ***, ***"),
        ('raise SystemExit("leaves")', "leaves"),
        ("import os; os._exit(7)", "its process ended with 7"),
        (SLEEPS, "it did not answer within 3 s"),
        pytest.param(BUSY, "it did not answer within 3 s", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_a_tracker_that_fails_is_one_warning(
    where: str,
    what: str,
    reason: str,
    dynabro: Dynabro,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mlflow.py").write_text(FAKE.format(where=where, what=what))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    monkeypatch.setattr(live_log, "LIMIT", 3)
    outcome = dynabro(*RUN, "--quiet", "--log", PLACE)
    assert (outcome.code, outcome.problems) == (
        0,
        [f"warning: mlflow: the log is incomplete ({reason})"],
    )
    rows = "SELECT round, budget, gap FROM evaluations", "SELECT status, final_gap FROM runs"
    logged = [read("results.db", row) for row in rows]
    assert dynabro(*RUN, "--rerun").code == 0
    assert [read("results.db", row) for row in rows] == logged
    assert logged[1][0][0] == "finished"


def test_a_process_that_hangs_ends_itself(tmp_path: Path) -> None:
    """Also if the command was killed; Ctrl-C is not for it."""
    (tmp_path / "mlflow.py").write_text(FAKE.format(where="begin", what=SLEEPS))
    words = [sys.executable, "-c", live_log.PROGRAM, "mlflow", "2", str(tmp_path), *sys.path]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    for message in ("x", ("begin", "key", ("name", "group", {}, [], "", 0.0), False)):
        process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.close()
    assert process.wait(60) == -signal.SIGALRM


def test_a_process_that_ended_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_log, "PROGRAM", "raise SystemExit(7)")
    tracker = live_log.Tracker("mlflow:x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracker.send("a")
        assert tracker._process is not None
        tracker._process.wait()
        for _ in range(3):
            tracker.send("b")
            tracker.push()
        tracker.close(1, leave=False)
    (text,) = (str(warning.message) for warning in caught)
    assert text == "mlflow: the log is incomplete (its process ended with 7)"


def test_a_run_never_waits_for_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More messages than a pipe holds, to a process that reads none."""
    monkeypatch.setattr(live_log, "PROGRAM", "import time; time.sleep(1000)")
    tracker = live_log.Tracker("mlflow:x")
    began = time.process_time()
    for _ in range(1000):
        tracker.send("points", "x" * 1000)
    assert time.process_time() - began < 5
    assert len(tracker._waiting) > 100_000
    with pytest.warns(UserWarning, match=r"incomplete \(it did not answer within 1 s"):
        tracker.close(1, leave=False)


@pytest.mark.parametrize("text", SHOWN)
def test_a_resumed_log_has_each_step_once(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds since the last checkpoint are made again."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    tool, _, place = text.partition(":")
    if tool == "wandb":  # it keeps the settings of the first call in a process
        pytest.importorskip(tool).teardown()
    pytest.importorskip(tool)
    module = importlib.import_module(f"dynabro_cli.runs.trackers.{tool}")
    run = Described("0123456789", "runs", {"task": "quadratic"}, (), "", 0.0)
    log = module.begin(run, place)
    log.points([(step, {"gap": float(step)}) for step in (0, 10, 20, 30)], 1.0)
    log.end({}, 1.0, "KILLED")
    log = module.begin(run, place, resumed=True)
    for step in (20, 30, 40):
        log.points([(step, {"gap": float(step), "new": 1.0})], 2.0 + step)
    log.end({"final_gap": 40.0}, 50.0, "FINISHED")
    expected = {run.name: [(step, step) for step in (0, 10, 20, 30, 40)]}
    assert within(20, lambda: READ[tool]("gap") == expected), READ[tool]("gap")


def started(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dynabro_cli", *words],
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def evaluations() -> int:
    try:
        return int(read("results.db", "SELECT COUNT(*) FROM evaluations")[0][0])
    except (sqlite3.Error, OSError):
        return 0


@pytest.mark.thorough
@pytest.mark.parametrize("every", ["1", "100000"])
def test_a_killed_run_goes_on_in_the_same_run_of_each_tracker(every: str, folder: Path) -> None:
    words = ["run", *DIGITS, "--budget", "6000", "--quiet", "--checkpoint-every", every]
    words += [word for text in TOOLS for word in ("--log", text)]
    process = started(*words, WANDB_MODE="offline")
    logged = Path("tb/runs")
    try:
        assert within(120, lambda: evaluations() > 8)
        process.send_signal(signal.SIGSTOP)  # trackers, which start slowly, write what they have
        assert within(120, lambda: logged.exists() and Path("m.db").exists())
    finally:
        process.kill()
        process.communicate()
    assert read("results.db", "SELECT status FROM runs") == [("running",)]
    assert within(60, lambda: of_place(folder) == [os.getpid()])  # trackers write what they have
    again = started(*words, WANDB_MODE="offline")
    _, problems = again.communicate(timeout=280)
    assert (again.returncode, problems) == (0, "")
    equal("tensorboard", "test_accuracy")
    with closing(sqlite3.connect("m.db")) as connection:
        statuses = connection.execute("SELECT status FROM runs ORDER BY start_time").fetchall()
    if every == "1":
        assert statuses == [("FINISHED",)]
        equal("mlflow", "test_accuracy")
        equal("wandb", "test_accuracy")
    else:  # it started over, in a new run of MLflow
        assert statuses == [("KILLED",), ("FINISHED",)]


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["log", "never"])
def test_ctrl_c_ends_in_time(where: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mlflow.py").write_text(FAKE.format(where=where, what=SLEEPS))
    words = ["run", *DIGITS, "--budget", "100000", "--quiet", "--log", PLACE]
    process = started(*words, PYTHONPATH=str(tmp_path))
    assert within(120, lambda: evaluations() > 3)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, problems = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - began < 20
    assert len(problems.splitlines()) == 1, problems


def test_runs_without_a_score(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(live_log.Tracker, "send", lambda self, *words: sent.append(words))
    spec = {"task": "quadratic", "budget": 60, "attack": "none", "method": "sgd"}
    wild = spec | {"learning_rate": 1e38, "task": "digits", "aggregator": "mean"}
    row = dynabro_cli.run(wild, quiet=True, log=["mlflow:x"])
    assert row["status"] == "diverged"
    kind, key, final, _, status = sent[-1]
    assert (kind, key, final, status) == ("end", row["run_key"], {}, "FINISHED")
    plugin = folder / "breaks.py"
    plugin.write_text(BREAKS)
    broken = spec | {"attack": "breaks", "workers": 3, "byzantine": 1}
    with fresh():
        dynabro_cli.load_plugin(plugin)
        with pytest.raises(DynabroError, match="too late"):
            dynabro_cli.run(broken, quiet=True, log=["mlflow:x"])
    assert (sent[-1][0], sent[-1][2], sent[-1][4]) == ("end", {}, "FAILED")
