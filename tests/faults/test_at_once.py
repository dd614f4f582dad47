"""Many processes on one database at once: writers that share a grid, that make it together, and
readers.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.oracle import (
    Content,
    Ended,
    Place,
    check_database,
    check_whole,
    end,
    read,
    run,
    sweep,
)

TINY = {
    "task": "quadratic",
    "method": "sgd",
    "aggregator": "cwmed",
    "attack": "shift:lambda=1",
    "budget": 20,
}
READS = (
    ("runs", "--json"),
    (
        "query",
        (
            "SELECT task, COUNT(*), MAX(round) FROM rounds JOIN runs ON runs.id = run_id GROUP BY "
            "run_id"
        ),
        "--csv",
    ),
    ("export", "curves", "--csv", "-"),
)


@pytest.mark.slow
def test_two_sweeps_share_a_grid_while_others_read(clean: Content, place: Place) -> None:
    made = place.do(*run(TINY, 99))  # so that there is something to read from the beginning
    assert made.code == 0, made
    both = [
        place.start(*sweep(place, jobs=1)),
        place.start(*sweep(place, "--set", "seeds=0..1", jobs=1)),
    ]
    over = threading.Event()

    def read_all_the_time(words: tuple[str, ...]) -> list[Ended]:
        answers = []
        while not over.is_set():
            answers.append(place.do(*words))
        return answers

    with (
        contextlib.closing(sqlite3.connect(f"{place.db.as_uri()}?mode=ro", uri=True)) as long,
        ThreadPoolExecutor(len(READS)) as pool,
    ):
        rows = long.execute("SELECT * FROM rounds, (SELECT 1 FROM rounds LIMIT 10)")
        first = rows.fetchone()  # and one reader holds its view of the database until all is over
        reading = [pool.submit(read_all_the_time, words) for words in READS]
        try:
            ended = [end(process) for process in both]
        finally:
            over.set()
        answers = [answer for future in reading for answer in future.result()]
        assert len([first, *rows]) == 20 * 10
    assert [command.code for command in ended] == [0, 0], ended
    assert len(answers) >= len(READS)
    assert [answer for answer in answers if answer.code or "Traceback" in answer.err] == []

    logs = {
        path.stem: path.read_text()
        for path in (place.folder / "results.db.d" / "logs").glob("*.log")
    }
    assert {key: logs[key].count("finished: ") for key in clean} == dict.fromkeys(clean, 1)
    assert {key: logs[key].count(" started: ") for key in clean} == dict.fromkeys(clean, 1)
    with contextlib.closing(sqlite3.connect(place.db)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM runs WHERE seed = 99")
    check_whole(place, clean)


@pytest.mark.slow
def test_processes_that_make_a_database_together(place: Place) -> None:
    processes: list[subprocess.Popen[str]] = [place.start(*run(TINY, seed)) for seed in range(8)]
    ended = [end(process) for process in processes]
    assert [command.code for command in ended] == [0] * 8, ended
    assert read(place.db, "SELECT seed, status, rounds FROM runs ORDER BY seed") == [
        (seed, "finished", 20) for seed in range(8)
    ]
    assert read(place.db, "SELECT COUNT(*) FROM rounds") == [(8 * 20,)]
    check_database(place)


@pytest.mark.slow
def test_processes_that_open_a_database_while_others_make_and_close_it(
    new_place: Callable[[str], Place],
) -> None:
    program = (
        "import sys\n"
        "from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only\n"
        "for number in range(60):\n"
        "    sys.stdin.readline()\n"
        "    open_for_writing(f'{number}.db').dispose()\n"
        "    with open_read_only(f'{number}.db').connect() as connection:\n"
        "        assert connection.exec_driver_sql('SELECT COUNT(*) FROM runs').scalar_one() == 0\n"
        "    print(number, flush=True)\n"
    )
    place = new_place("many")
    processes = [place.script(program) for _ in range(4)]
    for number in range(60):
        for process in processes:  # all at once
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said == f"{number}\n", end(process)
    assert [end(process).code for process in processes] == [0] * len(processes)
