"""``dynabro db``."""

from __future__ import annotations

import io
import json
import platform
import shutil
from pathlib import Path

import pytest

from dynabro_cli.runs.screen.output import size
from dynabro_cli.runs.store.tables import SCHEMA_VERSION
from tests.cli.conftest import Dynabro
from tests.runs.store.made import change, digest, read


def test_an_older_database_is_refused_and_left_as_it_is(dynabro: Dynabro, results: Path) -> None:
    change(results, "UPDATE alembic_version SET version_num = '0010'")
    change(results, "PRAGMA user_version = 10")
    before = results.read_bytes()
    for command in (
        ("run", "--budget", "40"),
        ("runs",),
        ("show", "runs/1"),
        ("export", "final", "--csv", "-"),
        ("db", "check"),
    ):
        outcome = dynabro(*command)
        assert (outcome.code, outcome.out) == (65, "")
        (line,) = outcome.problems
        assert line.startswith(
            f"results.db has schema version 10, and this dynabro needs {SCHEMA_VERSION}. Try: "
            "another --db"
        )
    assert results.read_bytes() == before


def test_a_sound_database(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("db", "check")
    assert (outcome.code, outcome.err) == (0, "")
    counts, verdict = outcome.out.splitlines()
    assert counts.startswith("results.db: 7 runs (7 finished), ")
    assert verdict == "no problem found"
    report = json.loads(dynabro("db", "check", "--json").out)
    assert (report["database"], report["statuses"], report["problems"]) == (
        "results.db",
        {"finished": 7},
        [],
    )


def test_a_few_problems_are_listed_and_many_are_counted(dynabro: Dynabro, results: Path) -> None:
    change(results, "UPDATE runs SET dynamic_rounds = 99 WHERE id = 2")
    outcome = dynabro("db", "check")
    assert (outcome.code, outcome.out.splitlines()[1:]) == (
        65,
        ["run 2: its rows are not as they were stored"],
    )
    assert outcome.problems[0].startswith(
        "results.db has 1 problem. Try: restore a backup; or dynabro db merge results.db"
    )
    for table in ("runs", "rounds", "evaluations", "recovery"):
        columns = [
            row[0]
            for row in read(
                results,
                "SELECT name FROM pragma_table_info(?) WHERE type = 'INTEGER' AND pk = 0",
                table,
            )
        ]
        change(
            results,
            f"UPDATE {table} SET {', '.join(f'{name} = {chr(39)}x{chr(39)}' for name in columns)}",
        )
    outcome = dynabro("db", "check")
    assert outcome.code == 65
    assert len(outcome.out.splitlines()) == 1 + 20 + 1
    as_json = json.loads(dynabro("db", "check", "--json").out)
    assert outcome.out.splitlines()[-1] == f"... and {len(as_json['problems']) - 20} more"


@pytest.mark.parametrize(
    ("command", "keep"),
    [
        *((("check",), keep) for keep in (10, 100, 5000, 20000)),
        (("backup",), 5000),
        (("merge", "results.db", "--db", "mine.db"), 5000),
    ],
)
def test_a_truncated_database_is_told_in_a_line(
    command: tuple[str, ...], keep: int, dynabro: Dynabro, results: Path
) -> None:
    results.write_bytes(results.read_bytes()[:keep])
    outcome = dynabro("db", *command)
    assert outcome.code == 65
    assert len(outcome.problems) == 1
    assert results.stat().st_size == keep


def test_a_backup(dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro("db", "backup", "copy.db")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("results.db copied to copy.db (")
    assert dynabro("runs", "--db", "copy.db").out == dynabro("runs").out
    again = dynabro("db", "backup", "copy.db")
    assert (again.code, again.problems) == (73, ["copy.db is there already. Try: another file"])
    outcome = dynabro("db", "backup")
    (path,) = results.parent.glob("results.db.*.backup")
    assert path.name in outcome.out


def test_a_backup_of_a_server(dynabro: Dynabro) -> None:
    outcome = dynabro("db", "backup", "--db", "postgresql+psycopg://me:secret@host/results")
    assert outcome.code == 2
    (line,) = outcome.problems
    assert "pg_dump" in line
    assert "secret" not in line


def test_a_thinned_copy(dynabro: Dynabro, results: Path) -> None:
    change(results, "UPDATE runs SET status = 'interrupted' WHERE id = 2")
    (rows,) = read(results, "SELECT COUNT(*) FROM rounds")[0]
    outcome = dynabro(
        "db", "thin", "small.db", "--every", "10", "--where", "task = 'digits'", "--anonymous"
    )
    (left,) = read(Path("small.db"), "SELECT COUNT(*) FROM rounds")[0]
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == (
        f"results.db thinned to small.db: 6 runs, {rows} -> {left} rows of rounds, "
        f"{size(results.stat().st_size)} -> "
        f"{size(Path('small.db').stat().st_size)}, 1 without a result skipped\n"
    )
    assert dynabro("db", "check", "--db", "small.db").code == 0
    assert platform.node().encode() in results.read_bytes()
    assert platform.node().encode() not in Path("small.db").read_bytes()
    shown, whole = (
        json.loads(dynabro("show", "runs/1", "--json", "--db", name).out)
        for name in ("small.db", "results.db")
    )
    assert shown["byzantine_histogram"] == whole["byzantine_histogram"]
    assert (shown["rounds_every"], whole["rounds_every"], shown["host"]) == (10, 1, "")
    assert (
        json.loads(dynabro("show", "runs/7", "--json", "--db", "small.db").out)["rounds_every"] == 1
    )
    again = dynabro("db", "thin", "smaller.db", "--every", "25", "--db", "small.db")
    assert ", 5 unchanged, because 25 is not a multiple of their earlier K\n" in again.out


def test_a_thinned_run_that_is_run_again(dynabro: Dynabro, results: Path) -> None:
    dynabro("db", "thin", "small.db", "--every", "10")
    words = (
        "run --task quadratic --method momentum --attack shift:lambda=1 --aggregator cwmed "
        "--budget 30 --db small.db"
    )
    assert "already in small.db" in dynabro(*words.split()).out
    assert dynabro(*words.split(), "--rerun").code == 0
    assert read(Path("small.db"), "SELECT rounds_every FROM runs WHERE task = 'quadratic'") == [
        (1,)
    ]
    assert read(
        Path("small.db"),
        "SELECT COUNT(*) FROM byzantine_counts WHERE run_id NOT IN (SELECT id FROM runs)",
    ) == [(0,)]
    assert dynabro("db", "check", "--db", "small.db").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (
            ("results.db", "--every", "9"),
            2,
            "results.db is to be thinned into itself. Try: another file",
        ),
        (("other.db", "--every", "9"), 73, "other.db is there already. Try: another file"),
        (
            ("no/small.db", "--every", "9"),
            73,
            "no/small.db: its folder no does not exist. Try: mkdir -p no",
        ),
        (
            ("a.db", "--every", "0"),
            2,
            "every=0: it must be 1 to 2147483647. Try: --every 100, which keeps every 100th round",
        ),
        (
            ("a.db", "--every", "9", "--db", "missing.db"),
            66,
            "there is no database missing.db. Try: dynabro run",
        ),
        (
            ("a.db", "--every", "9", "--where", "colour = 1"),
            2,
            "SQL: no such column: colour. Try: a column: id, ",
        ),
        (
            ("a.db", "--every", "9", "--db", "postgresql://me:secret@host/results"),
            2,
            "postgresql://me:***@host/results is a",
        ),
        (("a.db",), 2, "Missing option '--every'. Try: dynabro db thin --help"),
    ],
)
def test_what_cannot_be_thinned(
    arguments: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    Path("other.db").write_text("precious")
    outcome = dynabro("db", "thin", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert line.startswith(problem)
    assert {item.name for item in Path().iterdir() if not item.name.endswith(("-wal", "-shm"))} == {
        "other.db",
        "results.db",
    }


def test_the_path_of_an_objective_is_stored(dynabro: Dynabro, folder: Path) -> None:
    assert (
        dynabro(
            "run", "--task", "quadratic", "--method", "sgd", "--budget", "30", "--eval-every", "10"
        ).code
        == 0
    )
    points = [
        row[0] for row in read(Path("results.db"), "SELECT x FROM evaluations ORDER BY round")
    ]
    assert points[0] == "[3.0,-3.0]"
    assert [len(json.loads(point)) for point in points] == [2] * 4


def test_the_path_of_a_network_is_not_stored(dynabro: Dynabro, results: Path) -> None:
    assert read(
        results,
        "SELECT DISTINCT x FROM evaluations JOIN runs ON runs.id = run_id WHERE task = 'digits'",
    ) == [(None,)]


def test_a_merge(dynabro: Dynabro, results: Path) -> None:
    shutil.copy(results, "other.db")
    for table, run_id in (
        ("runs", "id"),
        ("rounds", "run_id"),
        ("evaluations", "run_id"),
        ("recovery", "run_id"),
    ):
        change(results, f"DELETE FROM {table} WHERE {run_id} IN (1, 2)")
    change(Path("other.db"), "DELETE FROM runs WHERE id = 3")
    rehearsed = dynabro("db", "merge", "other.db", "--dry-run")
    assert (
        rehearsed.out == "other.db would be merged into results.db: 2 runs copied, 4 already here\n"
    )
    outcome = dynabro("db", "merge", "other.db")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "other.db merged into results.db: 2 runs copied, 4 already here\n"
    assert dynabro("db", "check").code == 0
    again = json.loads(dynabro("db", "merge", "other.db", "--json").out)
    assert (again["copied"], again["here"], again["dry_run"]) == ([], 6, False)


def test_a_merge_tells_what_differs_and_what_is_left_out(dynabro: Dynabro, results: Path) -> None:
    shutil.copy(results, "other.db")
    change(Path("other.db"), "UPDATE runs SET final_loss = 0.5 WHERE id = 1")
    change(
        Path("other.db"), "UPDATE evaluations SET test_loss = 0.5 WHERE run_id = 1 AND round = 40"
    )
    digest(Path("other.db"))
    change(Path("other.db"), "UPDATE runs SET seed = 5, host = '\x1b[2J' WHERE id = 2")
    ((key, accuracy, loss),) = read(
        results, "SELECT run_key, final_accuracy, final_loss FROM runs WHERE id = 1"
    )
    ours = f"here finished after 40 rounds, accuracy {accuracy!r}, loss {loss!r}"
    outcome = dynabro("db", "merge", "other.db")
    assert outcome.code == 65
    assert outcome.out == (
        "other.db merged into results.db: 0 runs copied, 6 already here (1 of them with other "
        "numbers), "
        "1 damaged and not merged\n"
    )
    assert outcome.problems == [
        ("run 2 of the other database was not merged: its rows are not as they were stored"),
        (
            f"run {key[:10]} differs: {ours}; there finished after 40 rounds, accuracy "
            f"{accuracy!r}, loss 0.5"
        ),
        "1 run of other.db not merged, because of damage. Try: dynabro db check --db other.db",
    ]


def test_a_merge_says_if_results_that_differ_have_other_vector_instructions(
    dynabro: Dynabro, results: Path
) -> None:
    shutil.copy(results, "other.db")
    change(Path("other.db"), "UPDATE runs SET final_loss = 0.5 WHERE id = 1")
    change(
        Path("other.db"), "UPDATE evaluations SET test_loss = 0.5 WHERE run_id = 1 AND round = 40"
    )
    ((here,),) = read(
        results, "SELECT json_extract(versions, '$.cpu_capability') FROM environments LIMIT 1"
    )
    assert here
    for there, words in (("'Z80'", "Z80"), ("NULL", "unknown vector instructions")):
        change(
            Path("other.db"),
            f"UPDATE environments SET versions = json_set(versions, '$.cpu_capability', {there})",
        )
        digest(Path("other.db"))
        lines = dynabro("db", "merge", "other.db").err.splitlines()
        (line,) = [line for line in lines if "differs" in line]
        assert f", with {here}; there finished" in line
        assert line.endswith(f", loss 0.5, with {words}")
    (item,) = json.loads(dynabro("db", "merge", "other.db", "--json").out)["different"]
    assert (item["here"]["cpu_capability"], item["there"]["cpu_capability"]) == (here, None)


def test_a_long_merge_says_how_far_it_is(
    dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    from dynabro_cli.runs.screen import progress

    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0)
    outcome = dynabro("db", "merge", "results.db", "--db", "new.db")
    assert outcome.err.splitlines() == [f"{done}/7 runs" for done in range(8)]
    assert outcome.out == "results.db merged into new.db: 7 runs copied\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("results.db",), 2, "results.db is to be merged into itself. Try: another --db"),
        (("missing.db",), 66, "there is no database missing.db. Try: another database"),
        (
            ("results.db", "--db", "no/where.db"),
            73,
            "no/where.db: its folder no does not exist. Try: mkdir -p no",
        ),
    ],
)
def test_what_cannot_be_merged(
    arguments: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    outcome = dynabro("db", "merge", *arguments)
    assert (outcome.code, outcome.out, outcome.problems) == (code, "", [problem])


def test_runs_are_removed_when_that_is_confirmed(
    dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = results.read_bytes()
    summary = "2 runs (2 finished) of results.db, with 1 checkpoint or log file"
    (key,) = read(results, "SELECT run_key FROM runs WHERE method = 'dynabro' AND seed = 0")[0]
    log = Path("results.db.d", "logs", f"{key}.log")
    log.parent.mkdir(parents=True)
    log.write_text("log")
    where = ("--where", "method = 'dynabro'")
    outcome = dynabro("db", "remove", *where, "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1] == f"would be removed: {summary}"
    assert [line.split()[:6] for line in outcome.out.splitlines()[2:-1]] == [
        [number, "finished", "digits", "logistic", "dynabro", "cwtm"] for number in ("5", "6")
    ]
    outcome = dynabro("db", "remove", *where)
    assert (outcome.code, outcome.problems) == (
        2,
        [
            (
                "nothing is removed, because standard input is not a terminal. Try: --yes, or "
                "--dry-run, which lists the runs"
            )
        ],
    )
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    outcome = dynabro("db", "remove", *where)
    assert (outcome.code, outcome.out.splitlines()[-1]) == (0, "nothing is removed")
    assert outcome.err == f"remove {summary} for good? [y/N] "
    assert results.read_bytes() == before
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    outcome = dynabro("db", "remove", *where)
    assert (outcome.code, outcome.out.splitlines()[-1]) == (0, f"removed: {summary}")
    assert read(results, "SELECT COUNT(*) FROM runs WHERE method = 'dynabro'") == [(0,)]
    assert not log.exists()
    outcome = dynabro("db", "remove", *where, "--yes")
    assert (outcome.code, outcome.out) == (
        0,
        "no run of results.db is removed: no run fulfils method = 'dynabro'\n",
    )
    assert dynabro("db", "remove", "--where", "seed = 1", "--yes").code == 0
    outcome = dynabro("db", "check")
    assert outcome.out.startswith("results.db: 3 runs (3 finished)")


class Terminal(io.StringIO):
    """A terminal on which somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        ((), 2, "Missing option"),
        (("--where", "nope = 1"), 2, "no such column: nope"),
        (("--where", "1 = 1", "--db", "nope.db"), 66, "there is no database nope.db"),
    ],
)
def test_what_cannot_be_removed(
    arguments: tuple[str, ...], code: int, problem: str, dynabro: Dynabro, results: Path
) -> None:
    outcome = dynabro("db", "remove", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert problem in outcome.problems[0]


def test_an_unknown_command(dynabro: Dynabro) -> None:
    outcome = dynabro("db", "upgrad")
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.problems
    assert "upgrad" in line


@pytest.mark.parametrize(
    ("words", "form", "name"),
    [
        *((words, "{}", "loop.db") for words in ("run --task quadratic", "runs", "db check")),
        ("status", "sqlite:///{}", "a\udcff.db"),
    ],
)
def test_a_name_that_no_database_can_have(
    words: str, form: str, name: str, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "loop.db").symlink_to("loop.db")
    outcome = dynabro(*words.split(), "--db", form.format(name))
    assert (outcome.code, outcome.out) == (73, "")
    (line,) = outcome.problems
    assert "cannot be a " in line
    assert "Try: another --db" in line


@pytest.mark.parametrize(
    ("change_", "command", "column"),
    [
        ("wall_seconds = 'abc'", "runs", "wall_seconds"),
        ("wall_seconds = x'00'", "show 2", "wall_seconds"),
        ("task = x'ff'", "show 2", "task"),
        ("final_accuracy = 'abc'", "compare --all seed", "final_accuracy"),
        ("final_accuracy = 'abc'", "export final --csv -", "final_accuracy"),
    ],
)
def test_a_value_that_dynabro_has_not_written_is_named_where_it_is_needed(
    change_: str, command: str, column: str, dynabro: Dynabro, results: Path
) -> None:
    change(results, f"UPDATE runs SET {change_} WHERE id = 2")
    for words in ("show 1", "status", "export rounds --csv -"):
        assert dynabro(*words.split()).code == 0
    outcome = dynabro(*command.split())
    problem = (
        f"run 2: a value of runs.{column} is of another type, or too large. Try: dynabro "
        "db check, which lists all problems"
    )
    assert (outcome.code, outcome.problems) == (65, [problem])
