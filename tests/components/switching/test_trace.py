"""Trace: schedules from files, by hand, and what is wrong with files."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.api import make_switching
from dynabro_cli.components.switching import trace
from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import resolve

EXAMPLE = "tick,byzantine\n0,1 2 3\n10,4 5\n15,\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str | bytes, name: str = "s.csv") -> str:
    """The hash of a file with this content."""
    data = text if isinstance(text, bytes) else text.encode()
    Path(name).write_bytes(data)
    return hashlib.sha256(data).hexdigest()[:16]


def turns(ticks: list[int], how: str = "", workers: int = 9) -> list[list[int]]:
    """The numbers of the Byzantine workers, from 1, at some ticks."""
    strategy = make_switching(f"trace:file=s.csv{how}", workers=workers, byzantine=3)
    return [
        [number + 1 for number in strategy.mask(tick).nonzero()[:, 0].tolist()] for tick in ticks
    ]


def test_a_set_stays_until_the_next_row_and_the_last_for_ever() -> None:
    write(EXAMPLE)
    assert turns([0, 9, 10, 14, 15, 16, 10**9]) == [
        [1, 2, 3],
        [1, 2, 3],
        [4, 5],
        [4, 5],
        [],
        [],
        [],
    ]


def test_a_schedule_that_repeats() -> None:
    """Ticks 0 to 15, and again: 16 is 0, 26 is 10, 31 is 15, 32 is 0."""
    write(EXAMPLE)
    assert turns([15, 16, 25, 26, 31, 32], ",repeat=true") == [
        [],
        [1, 2, 3],
        [1, 2, 3],
        [4, 5],
        [],
        [1, 2, 3],
    ]
    write(EXAMPLE + "19,\n")
    assert turns([16, 19, 20], ",repeat=true") == [[], [], [1, 2, 3]]


def test_what_spreadsheets_write() -> None:
    """A mark at the beginning, other line ends, quotes, blanks, lines of nothing, and numbers in
    any order.
    """
    write(b'\xef\xbb\xbftick, byzantine\r\n"0","3 1"\r\n,\r\n 2 , 2\r\n')
    assert turns([0, 1, 2]) == [[1, 3], [1, 3], [2]]


def test_how_many_there_always_are() -> None:
    write("tick,byzantine\n0,1 2\n5,3 4\n")
    assert make_switching("trace:file=s.csv", workers=5, byzantine=2).always == 2
    write(EXAMPLE)
    assert make_switching("trace:file=s.csv", workers=5, byzantine=2).always is None


WRONG: list[tuple[str | bytes, list[str]]] = [
    ("", ["line 1: it must be the header 'tick,byzantine'"]),
    ("tick,worker\n0,1\n", ["line 1: it must be the header 'tick,byzantine'"]),
    (
        "tick,byzantine\n",
        ["line 2: there is no row after the header; the first row must have tick 0"],
    ),
    ("tick,byzantine\n1,2\n", ["line 2: the first tick is 1; it must be 0"]),
    (
        "tick,byzantine\n0,1\n5,2\n5,3\n4,1\n",
        ["line 4: tick 5 follows tick 5; ticks must grow", "line 5: tick 4 follows"],
    ),
    (
        "tick,byzantine\n0,1\nx,2\n-3,2\n1.5,2\n",
        ["line 3: tick 'x' is not", "line 4: tick '-3' is", "line 5: tick '1.5' is"],
    ),
    ("tick,byzantine\n0,0\n", ["line 2: '0' is not a worker; workers have the numbers 1 to 9"]),
    (
        "tick,byzantine\n0,1 10\n1,one\n",
        [
            "line 2: '10' is not a worker; workers have the numbers 1 to 9",
            "line 3: 'one' is not a ",
        ],
    ),
    ("tick,byzantine\n0,1 2 1\n", ["line 2: it names a worker twice"]),
    (
        "tick,byzantine\n0,1,2\n3\n",
        ["line 2: it has 3 cells, but must have 2", "line 3: it has 1 cells, but must have 2"],
    ),
    (
        "tick,byzantine\n0,1\n" + "7,99\n" * 7,
        [f"line {n}: '99' is not a worker" for n in range(3, 8)] + ["2 more lines are"],
    ),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_wrong_lines_are_told_with_their_numbers(text: str, expected: list[str]) -> None:
    write(text)
    with pytest.raises(SpecError) as caught:
        turns([0])
    assert len(caught.value.problems) == len(expected)
    for problem, start in zip(caught.value.problems, expected, strict=True):
        assert problem.startswith(f"switching 'trace': s.csv, {start}")


def test_files_that_are_none() -> None:
    with pytest.raises(
        SpecError, match=r"file=s.csv cannot be read \(No such file or directory, in .*\). Try: "
    ):
        turns([0])
    write(b"tick,byzantine\n0,\xff\n")
    with pytest.raises(SpecError, match="is not text in UTF-8"):
        turns([0])
    Path("folder").mkdir()
    with pytest.raises(SpecError, match="file=folder cannot be read"):
        resolve(RunSpec(switching="trace:file=folder"))


def test_the_key_is_that_of_the_content() -> None:
    first = write(EXAMPLE)
    run = resolve(RunSpec(switching="trace:file=s.csv"))
    assert run.spec.switching == f"trace:file=s.csv,hash={first}"
    assert run.mapping["switching"] == {
        "name": "trace",
        "file": "s.csv",
        "repeat": False,
        "hash": first,
    }
    assert resolve(run.spec).key == run.key
    assert resolve(RunSpec(switching="trace: repeat=false , hash=auto,file=s.csv")).key == run.key
    for file in ("./s.csv", ".//s.csv", f"../{Path.cwd().name}/s.csv", "'s.csv'"):
        assert resolve(RunSpec(switching=f"trace:file={file}")).key == run.key
    second = write(EXAMPLE + "20,1\n")
    other = resolve(RunSpec(switching="trace:file=s.csv"))
    assert other.spec.switching.endswith(second)
    assert other.key != run.key
    with pytest.raises(SpecError) as caught:
        resolve(run.spec)
    (problem,) = caught.value.problems
    assert problem.startswith(
        f"switching 'trace': file=s.csv does not have the content of hash={first}, but of "
        f"hash={second}; leave"
    )


@pytest.mark.parametrize("clock", ["round", "computation"])
def test_a_run_follows_it_and_tells_the_changes(clock: str) -> None:
    """By computation, from the first on that a round makes: those that measured V are ticks
    before.
    """
    write("tick,byzantine\n0,1 2 3\n4,\n12,3 1 2\n20,9\n20000,1\n")
    spec = RunSpec(
        task="quadratic",
        method="dynabro:jmax=2,filter=option1",
        switching="trace:file=s.csv",
        clock=clock,
        workers=9,
        byzantine=3,
        budget=80,
        attack="sf",
    )
    stream = [event for event in simulate(spec, threads=1) if isinstance(event, events.RoundsDone)]
    told = [(change.tick, change.byzantine) for event in stream for change in event.identities]
    later = [(12, (1, 2, 3)), (20, (9,))]
    assert told == ([(0, (1, 2, 3)), (4, ()), *later] if clock == "round" else [(10, ()), *later])


@pytest.mark.timeout(60)
def test_what_has_no_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("s.csv")
    for file in ("s.csv", "/dev/zero", "."):
        with pytest.raises(
            SpecError,
            match=f"file={file} cannot be read \\((it is not a regular file|Is a directory)",
        ) as error:
            resolve(RunSpec(switching=f"trace:file={file}"))
        assert len(error.value.problems) == 1
    Path("s.csv").unlink()
    write(EXAMPLE)
    monkeypatch.setattr(trace, "MOST_BYTES", len(EXAMPLE) - 1)
    with pytest.raises(SpecError, match=r"file=s.csv cannot be read \(it is larger than 0 MiB"):
        resolve(RunSpec(switching="trace:file=s.csv"))


@pytest.mark.thorough
def test_a_long_schedule_of_many_workers_takes_no_table_of_both() -> None:
    """10^4 rows of 10^5 workers would be a gigabyte of masks."""
    write("tick,byzantine\n" + "".join(f"{tick},{tick + 1}\n" for tick in range(10_000)))
    tracemalloc.start()
    strategy = make_switching("trace:file=s.csv", workers=100_000, byzantine=3)
    assert strategy.mask(7777).nonzero().tolist() == [[7777]]
    strategy.mask(7777)[:] = True  # the caller's own
    assert int(strategy.mask(7777).sum()) == 1
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
