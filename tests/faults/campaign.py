"""Kill processes in the middle of their work, hundreds of times, and compare what is stored with an
undisturbed sweep.

``python -m tests.faults.campaign --kills 200 --kind workers --kind scheduler --db sqlite --db
postgres`` makes the sweep of ``oracle`` again and again, until so many kills have hit. A kill
counts only if it hit: the command had stored rows of the run that it was making, and the run was in
progress. Kills of workers and nodes are told by the runs' logs, kills of the scheduler by the runs
that it left ``running``, kills in a transaction by the signal that the command ended with.

Outages are no kills: ``.ci/postgres python -m tests.faults.campaign --kind outages --db postgres
--kills 12 --every 300`` makes the sweep by two commands at once for an hour, on a server of its own
that is restarted, or drops its connections, every five minutes. Both commands have to wait, and to
end well.

A table says what was found, and the exit code is 1 if rows differ, or if a process, a row or a file
is left that should not be. With ``--folder`` a campaign that was stopped goes on. PostgreSQL:
``.ci/postgres python -m tests.faults.campaign``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults import ray_nodes
from tests.faults.oracle import (
    DYNABRO,
    MOMENTUM,
    SEEDS,
    TABLES,
    Content,
    Place,
    check_part,
    check_whole,
    end,
    read,
    run,
    sweep,
)
from tests.faults.processes import of_place, within
from tests.postgres import VARIABLE, OwnServer, cut_connections, empty_database, own_server

PATIENCE = 3600
"""Seconds after which a command that does not end is a failure, on a machine that does other
things, too.
"""
SPREAD = 2.0
"""A kill comes up to so many seconds after its victim has stored rows."""
POLL = 0.05


@dataclass
class Tally:
    """What became of the kills of one kind on one kind of database.

    Attributes:
        kills: How many hit.
        commands: How many commands were started; ``sweeps``: how many times the whole sweep was
            completed.
        rows: Rows that were compared with those of the undisturbed sweep.
        unequal: Sweeps whose rows differed, or that ended in another way than they should.
        processes, stray_rows, files: What was left that should not be.
        seconds: How long it took.
        problems: What was wrong, in words.
    """

    kills: int = 0
    commands: int = 0
    sweeps: int = 0
    rows: int = 0
    unequal: int = 0
    processes: int = 0
    stray_rows: int = 0
    files: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing differs, and nothing is left."""
        return not (self.unequal or self.processes or self.stray_rows or self.files)


class Watch:
    """Reads what is added to the logs of a place: which processes are in the middle of a run, and
    which of them were lost.

    Args:
        place: The place; what its logs say by now is passed over.
    """

    BEGUN, LOST = re.compile(r" begun by process (\d+)$"), "; the run is retried"
    STORED, OVER = (
        " checkpoint after round ",
        re.compile(r" (finished: |diverged in|interrupted after|failed after)"),
    )

    def __init__(self, place: Place) -> None:
        self._folder = place.folder / "results.db.d" / "logs"
        self._read = {path: path.stat().st_size for path in self._folder.glob("*.log")}
        self._begun: dict[Path, int] = {}
        self.busy: dict[Path, int] = {}
        self.lost = 0

    def look(self) -> Watch:
        """Read on."""
        for path in self._folder.glob("*.log"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                self._take(path, line)
        return self

    def _take(self, path: Path, line: str) -> None:
        if begun := self.BEGUN.search(line):
            self._begun[path] = int(begun[1])
        elif self.STORED in line:
            self.busy.setdefault(path, self._begun.get(path, 0))
        elif self.LOST in line or self.OVER.search(line):
            self.lost += self.LOST in line
            self.busy.pop(path, None)


class Campaign:
    """Kills of one kind on one kind of database, until so many have hit.

    Args:
        folder: Where the sweeps are made.
        kind: ``workers``, ``scheduler``, ``transaction``, ``ray`` or ``outages``.
        database: ``sqlite`` or ``postgres``.
        seeds: Seeds of each of the sweep's two cells.
        clean: What an undisturbed sweep stores.
        seed: Of all chance.
        every: Seconds between two outages.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        database: str,
        seeds: int,
        clean: Content,
        seed: int,
        every: float = 0,
    ) -> None:
        self._folder, self.kind, self.database, self._seeds, self._clean = (
            folder,
            kind,
            database,
            seeds,
            clean,
        )
        self._every, self._next = every, time.monotonic() + every
        self._server: OwnServer | None = None
        self._file = folder / f"{kind}-{database}.json"
        self.tally = Tally(**json.loads(self._file.read_text())) if self._file.exists() else Tally()
        self._chance = random.Random(f"{seed} {kind} {database} {self.tally.kills}")
        self._nodes: ray_nodes.Nodes | None = None

    def until(self, kills: int) -> Tally:
        """Complete sweeps until ``kills`` have hit, or something is wrong."""
        with contextlib.ExitStack() as stack:
            if self.kind == "ray" and self.tally.kills < kills:
                self._nodes = stack.enter_context(ray_nodes.two())
            if self.kind == "outages" and self.tally.kills < kills:
                self._server = stack.enter_context(own_server())
            while self.tally.kills < kills and self.tally.good:
                began, before = time.monotonic(), self.tally.kills
                with self._place() as place:
                    try:
                        self._complete(place, kills)
                        self._compare(place)
                    except (AssertionError, subprocess.TimeoutExpired) as error:
                        self.tally.unequal += 1
                        self.tally.problems.append(f"{place.folder}: {str(error)[:2000]}")
                    self.tally.sweeps += 1
                    self.tally.seconds += time.monotonic() - began
                    self._file.write_text(json.dumps(asdict(self.tally)))
                    if self.tally.good:
                        shutil.rmtree(place.folder)
                print(
                    f"{self.kind}, {self.database}: {self.tally.kills} of {kills} kills "
                    f"({self.tally.kills - before} in this "
                    f"sweep), {self.tally.commands} commands, {self.tally.seconds:.0f} s",
                    flush=True,
                )
        return self.tally

    @contextlib.contextmanager
    def _place(self) -> Iterator[Place]:
        """A place for one sweep, with what is left of its processes killed in the end."""
        folder = Path(tempfile.mkdtemp(prefix=f"{self.kind}-", dir=self._folder))
        with contextlib.ExitStack() as stack:
            on = None if self._server is None else self._server.url
            server = (
                stack.enter_context(empty_database(on=on)) if self.database == "postgres" else None
            )
            place = Place(folder, server)
            stack.callback(place.close)
            yield place

    def _complete(self, place: Place, kills: int) -> None:
        """Repeat commands, and kill what they are made of, until the sweep is complete."""
        while True:
            done = self.tally.kills >= kills
            kill = None if done else getattr(self, f"_{self.kind}")
            words, environment = self._command(place, done)
            process = place.start(*words, **environment)
            self.tally.commands += 1
            if kill is not None:
                kill(place, process, kills)
            ended = end(process, PATIENCE)
            left = within(20, lambda: not self._left(place))
            self.tally.processes += 0 if left else len(self._left(place))
            if ended.code == 0 and words[0] == "sweep":
                return
            assert ended.code in (0, -signal.SIGKILL), ended
            check_part(place, self._clean)

    def _command(self, place: Place, done: bool) -> tuple[tuple[str, ...], dict[str, str]]:
        """The next command: the sweep, or, where a transaction is killed, now and then one run of
        it.
        """
        more = (
            "--set",
            f"seeds=0..{self._seeds - 1}",
            "--quiet",
            "--max-retries",
            "9999",
            "--retry-failed",
        )
        if self._nodes is not None:
            more += ("--executor", "ray", "--address", self._nodes.address)
        whole = sweep(place, *more, jobs=self._chance.randint(1, 2))
        if self.kind != "transaction" or done:
            return whole, {}
        if self._chance.random() < 0.25:
            at = self._chance.choice(
                [f"claim:{self._chance.randint(2, 3)}", f"mid-batch:{self._chance.randint(2, 60)}"]
            )
            return whole, {"DYNABRO_FAILPOINT": f"{at}=KILL"}
        cell, seed = self._chance.choice([MOMENTUM, DYNABRO]), self._chance.randrange(self._seeds)
        return run(cell, seed, "--quiet"), {
            "DYNABRO_FAILPOINT": f"mid-batch:{self._chance.randint(2, 30)}=KILL"
        }

    def _transaction(self, place: Place, process: subprocess.Popen[str], kills: int) -> None:
        process.wait(PATIENCE)
        self.tally.kills += process.returncode == -signal.SIGKILL

    def _workers(self, place: Place, process: subprocess.Popen[str], kills: int) -> None:
        watch, dead, before = Watch(place), set[int](), self.tally.kills
        while process.poll() is None and self.tally.kills < kills:
            busy = sorted(set(watch.look().busy.values()) - dead)
            self.tally.kills = before + watch.lost
            if not busy:
                time.sleep(POLL)
                continue
            victim = self._chance.choice(busy)
            time.sleep(self._chance.uniform(0, SPREAD))
            if victim in watch.look().busy.values():
                dead.add(victim)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
        process.wait(PATIENCE)
        self.tally.kills = before + watch.look().lost

    def _scheduler(self, place: Place, process: subprocess.Popen[str], kills: int) -> None:
        watch = Watch(place)
        while process.poll() is None and not watch.look().busy:
            time.sleep(POLL)
        time.sleep(self._chance.uniform(0, SPREAD))
        if process.poll() is None:
            process.kill()
            process.wait()
            left = "SELECT COUNT(*) FROM runs WHERE status = 'running' AND pid = ?"
            self.tally.kills += read(place.database, left, process.pid) > [(0,)]

    def _ray(self, place: Place, process: subprocess.Popen[str], kills: int) -> None:
        assert self._nodes is not None
        watch, before = Watch(place), self.tally.kills
        while process.poll() is None and self.tally.kills < kills:
            if not watch.look().busy:
                time.sleep(POLL)
                continue
            time.sleep(self._chance.uniform(0, SPREAD))
            lost = watch.look().lost
            if self._chance.random() < 0.25:
                self._nodes.lose_one()
            else:
                self._nodes.kill_task(self._chance)
            within(15, lambda lost=lost: watch.look().lost > lost or process.poll() is not None)  # type: ignore[misc]
            self.tally.kills = before + watch.lost
            self._nodes.repair()
        process.wait(PATIENCE)
        self.tally.kills = before + watch.look().lost

    def _outages(self, place: Place, process: subprocess.Popen[str], kills: int) -> None:
        """Make the sweep by a second command, too, while the server fails now and then; both must
        end well.
        """
        assert self._server is not None
        second = place.start(*self._command(place, done=True)[0])
        self.tally.commands += 1
        while process.poll() is None and second.poll() is None and self.tally.kills < kills:
            if time.monotonic() < self._next:
                time.sleep(POLL)
                continue
            outage = self._chance.choice(["fast", "immediate", "connections"])
            if outage == "connections":
                cut_connections(str(place.database), self._server.url)
            else:
                self._server.restart(outage, pause=self._chance.uniform(0, 10))
            self.tally.kills += process.poll() is None or second.poll() is None
            self._next = time.monotonic() + self._every
        for ended in (end(process, PATIENCE), end(second, PATIENCE)):
            assert ended.code == 0, ended

    def _left(self, place: Place) -> list[int]:
        """Processes of the commands that have ended."""
        return of_place(place.folder) + (self._nodes.tasks() if self._nodes is not None else [])

    def _compare(self, place: Place) -> None:
        """Compare all that is stored with the undisturbed sweep, and count what should not be
        there.
        """
        self.tally.files += len(stray_files(place, self._clean))
        self.tally.stray_rows += stray_rows(place)
        check_whole(place, self._clean)
        self.tally.rows += sum(
            len(found[table]) for found in self._clean.values() for table in TABLES
        )


def stray_rows(place: Place) -> int:
    """Rows that belong to nothing, and runs that somebody seems to be making, or repeating."""
    sql = [
        f"SELECT COUNT(*) FROM {table} WHERE run_id NOT IN (SELECT id FROM runs)"
        for table in (*TABLES, "byzantine_counts")
    ]
    sql += ["SELECT COUNT(*) FROM sweep_runs WHERE sweep_id NOT IN (SELECT id FROM sweeps)"]
    left = (
        "SELECT COUNT(*) FROM runs WHERE status = 'running' OR owner IS NOT NULL OR run_key LIKE ?"
    )
    return (
        sum(int(read(place.database, statement)[0][0]) for statement in sql)
        + read(place.database, left, "%+rerun")[0][0]
    )


def stray_files(place: Place, clean: Content) -> list[Path]:
    """Files in a place that are neither the database, nor the sweep, nor a log of one of its runs.

    A reader leaves SQLite's own two beside the database; nothing is to be in its write-ahead log.
    """
    side, log = place.folder / "results.db.d", place.db.with_name("results.db-wal")
    usual = {place.db, place.sweep_file, place.db.with_name("results.db-shm")}
    usual |= {side / "logs" / f"{key}.log" for key in clean} | (
        {log} if log.exists() and not log.stat().st_size else set()
    )
    return [path for path in place.folder.rglob("*") if path.is_file() and path not in usual]


def undisturbed(folder: Path, seeds: int) -> Content:
    """What the sweep stores where nothing goes wrong."""
    from tests.faults.oracle import content

    folder = Path(tempfile.mkdtemp(prefix="clean-", dir=folder))
    place = Place(folder)
    ended = end(place.start(*sweep(place, "--set", f"seeds=0..{seeds - 1}", "--quiet")), PATIENCE)
    assert ended.code == 0, ended
    return content(place.db)


def table(tallies: dict[tuple[str, str], Tally]) -> str:
    """What was found, a line for each kind of kill and of database."""
    names = (
        "kind",
        "database",
        "kills",
        "commands",
        "sweeps",
        "rows equal",
        "unequal sweeps",
        "orphans",
        "time",
    )
    lines = [names] + [
        (
            *(
                kind,
                database,
                str(it.kills),
                str(it.commands),
                str(it.sweeps),
                f"{it.rows:,}",
                str(it.unequal),
            ),
            f"{it.processes} processes, {it.stray_rows} rows, {it.files} files",
            f"{it.seconds:.0f} s",
        )
        for (kind, database), it in tallies.items()
    ]
    widths = [max(len(line[index]) for line in lines) for index in range(len(names))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


KINDS: dict[str, Callable[..., None]] = {
    "workers": Campaign._workers,
    "scheduler": Campaign._scheduler,
    "transaction": Campaign._transaction,
    "ray": Campaign._ray,
    "outages": Campaign._outages,
}


def main(arguments: list[str] | None = None) -> int:
    """Make the campaign; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Kill processes in the middle of runs, and compare what is stored."
    )
    parser.add_argument(
        "--kills", type=int, default=20, help="kills of each kind on each database (20)"
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=KINDS,
        help="what is killed; all but ray and outages by default",
    )
    parser.add_argument(
        "--db",
        action="append",
        choices=("sqlite", "postgres"),
        help="where runs are stored (sqlite)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all chance (0)")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help=f"seeds of the sweep's two cells ({SEEDS})"
    )
    parser.add_argument("--every", type=float, default=60, help="seconds between two outages (60)")
    parser.add_argument(
        "--folder", type=Path, help="go on with the campaign in this folder, or begin one in it"
    )
    given = parser.parse_args(arguments)
    kinds, databases = given.kind or ["workers", "scheduler", "transaction"], given.db or ["sqlite"]
    if "postgres" in databases and not os.environ.get(VARIABLE):
        parser.error(
            f"{VARIABLE} names no server. Try: .ci/postgres python -m tests.faults.campaign ..."
        )
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    # commands would inherit that it is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        folder = (
            given.folder
            or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynabro-campaign-")))
        ).resolve()
        clean = undisturbed(folder, given.seeds)
        tallies = {
            (kind, database): Campaign(
                folder, kind, database, given.seeds, clean, given.seed, given.every
            ).until(given.kills)
            for kind in kinds
            for database in databases
        }
    print(table(tallies))
    for tally in tallies.values():
        for problem in tally.problems:
            print(problem, file=sys.stderr)
    return 0 if all(tally.good for tally in tallies.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
