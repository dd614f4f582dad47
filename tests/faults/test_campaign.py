"""The campaign of kills: a short one, and that it finds what it looks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign, Tally, Watch, main, stray_files, stray_rows
from tests.faults.oracle import Place, content
from tests.faults.processes import of_place, within
from tests.postgres import VARIABLE
from tests.runs.store.made import change

KEY = "ab" * 32


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "database", "kills"),
    [
        pytest.param("transaction", "sqlite", 1, marks=pytest.mark.slow),
        pytest.param("workers", "sqlite", 1, marks=pytest.mark.slow),
        pytest.param("scheduler", "sqlite", 1, marks=pytest.mark.slow),
        pytest.param("ray", "sqlite", 2, marks=pytest.mark.slow),
        pytest.param("transaction", "postgres", 2, marks=pytest.mark.slow),
        pytest.param("workers", "postgres", 2, marks=pytest.mark.slow),
        pytest.param("scheduler", "postgres", 2, marks=pytest.mark.slow),
        pytest.param("outages", "postgres", 2, marks=pytest.mark.slow),
    ],
)
def test_a_short_campaign(
    kind: str, database: str, kills: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if database == "postgres" and not os.environ.get(VARIABLE):
        pytest.skip(f"{VARIABLE} names no server")
    words = [
        "--kind",
        kind,
        "--db",
        database,
        "--kills",
        str(kills),
        "--seeds",
        "1",
        "--every",
        "5",
        "--folder",
        str(tmp_path),
    ]
    code = main(words)
    captured = capsys.readouterr()
    assert code == 0, captured
    tally = Tally(**json.loads((tmp_path / f"{kind}-{database}.json").read_text()))
    assert tally.kills >= kills
    assert tally.rows > 0
    assert (
        f"{tally.processes} processes, {tally.stray_rows} rows, {tally.files} files" in captured.out
    )
    assert main(words) == 0  # which has nothing to do but to tell
    assert Tally(**json.loads((tmp_path / f"{kind}-{database}.json").read_text())) == tally


def finished(place: Place) -> Place:
    """A place with a database of one run, and its log."""
    ended = place.do("run", "--task", "quadratic", "--budget", "20", "--threads", "1", "--quiet")
    assert ended.code == 0, ended
    return place


def test_what_is_left_is_found(place: Place) -> None:
    finished(place)
    (key,) = content(place.db)
    assert stray_files(place, {key: {}}) == []
    assert stray_rows(place) == 0
    for left in (
        place.folder / "left",
        place.folder / "results.db.d" / "checkpoints" / f"{key}.1.part",
    ):
        left.touch()
        assert left in stray_files(place, {key: {}})
        left.unlink()
    assert [path.name for path in stray_files(place, {}) if path.suffix == ".log"] == [f"{key}.log"]
    for statement in (
        "INSERT INTO recovery (run_id, switches_seen, recoveries) VALUES (99, 0, 0)",
        "UPDATE runs SET owner = 'somebody'",
        "INSERT INTO sweep_runs VALUES (7, 'key', NULL)",
    ):
        before = stray_rows(place)
        change(place.db, statement)
        assert stray_rows(place) == before + 1
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], cwd=place.folder, stdin=subprocess.PIPE
    ) as process:
        assert within(10, lambda: of_place(place.folder) == [process.pid])
        process.kill()


def made(self: Campaign, place: Place, kills: int) -> None:
    """In the place of ``_complete``: no kills, and one run."""
    finished(place)


def failed(self: Campaign, place: Place, kills: int) -> None:
    """In the place of ``_complete``: a command that ends in another way than it should."""
    raise AssertionError("exit code 70")


@pytest.mark.parametrize(
    ("complete", "fits"),
    [(made, False), pytest.param(made, True, marks=pytest.mark.slow), (failed, True)],
)
def test_what_is_wrong_ends_the_campaign(
    complete: Callable[..., None],
    fits: bool,
    new_place: Callable[[str], Place],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clean = content(finished(new_place("clean")).db)
    if not fits:
        for found in clean.values():
            found["rounds"][3]["gradient_norm"] *= 1 + 1e-15
    monkeypatch.setattr(Campaign, "_complete", complete)
    folder = tmp_path / "made"
    folder.mkdir()
    its = Campaign(folder, "transaction", "sqlite", 1, clean, 0)
    monkeypatch.setattr(Campaign, "_compare", counted(Campaign._compare))
    tally = its.until(1)
    good = complete is made and fits
    assert (tally.good, tally.unequal, tally.sweeps) == (good, not good, 1)
    assert [str(folder) in problem for problem in tally.problems] == [True] * (not good)
    # what went wrong can be looked at
    assert good == (not any(path.is_dir() for path in folder.iterdir()))


def counted(compare: Callable[[Campaign, Place], None]) -> Callable[[Campaign, Place], None]:
    """As ``_compare``; one kill has hit then, so that the campaign ends."""

    def compare_and_count(self: Campaign, place: Place) -> None:
        compare(self, place)
        self.tally.kills += 1

    return compare_and_count


def test_what_the_logs_say(tmp_path: Path) -> None:
    place = Place(tmp_path)
    folder = tmp_path / "results.db.d" / "logs"
    folder.mkdir(parents=True)
    log = folder / f"{KEY}.log"
    log.write_text(
        "2026-01-01T00:00:00Z begun by process 7\n2026-01-01T00:00:00Z checkpoint after round "
        "1, 9 bytes\n"
    )
    watch = Watch(place)
    assert watch.look().busy == {}  # of a command before

    def add(text: str) -> Watch:
        with log.open("a") as file:
            file.write(text)
        return watch.look()

    assert (
        add("2026-01-01T00:00:00Z begun by process 8\n2026-01-01T00:00:00Z checkpoint aft").busy
        == {}
    )
    assert add("er round 1, 9 bytes\n").busy == {log: 8}
    assert (
        add("2026-01-01T00:00:00Z its process was killed by SIGKILL; the run is retried\n").busy
        == {}
    )
    assert watch.lost == 1
    assert add(
        "2026-01-01T00:00:00Z begun by process 9\n2026-01-01T00:00:00Z checkpoint after round "
        "2, 9 bytes\n"
    ).busy == {log: 9}
    assert add("2026-01-01T00:00:00Z finished: gap 1; 3 rounds\n").busy == {}
    assert watch.lost == 1
