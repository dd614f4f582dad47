"""What is PostgreSQL's own: making the tables, turns of writers, lost connections, and what a
reader is kept from.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError

from dynabro_cli.core import events
from dynabro_cli.core.errors import (
    BusyError,
    CannotWriteError,
    DatabaseError,
    DisconnectedError,
    LostRunError,
    NotFoundError,
    OutageWarning,
    SpecError,
    StorageError,
)
from dynabro_cli.runs.store.care import merge as merging
from dynabro_cli.runs.store.care.merge import merge
from dynabro_cli.runs.store.open import engine as engine_module
from dynabro_cli.runs.store.open import servers, translation
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only, snapshot
from dynabro_cli.runs.store.open.translation import shown, translate
from dynabro_cli.runs.store.read import queries
from dynabro_cli.runs.store.tables import SCHEMA_VERSION
from dynabro_cli.runs.store.write import row_digests
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from tests.postgres import allow_connections, connect, cut_connections, on_server, turn_taken
from tests.runs.store import sound
from tests.runs.store.made import (
    KEY,
    RECORD,
    a_round,
    change,
    checkpointed,
    evaluated,
    finished,
    read,
    record,
    rounds,
    started,
    totals,
    whole_run,
)

ROOT = Path(__file__).parents[3]
OPENERS = [open_for_writing, open_read_only]


@pytest.fixture
def backend() -> str:
    """These tests are about one kind."""
    return "postgresql"


@pytest.fixture
def role(database: str) -> Iterator[str]:
    """The URL of the database for a user without rights."""
    name = f"{make_url(database).database}_guest"
    on_server(f"CREATE ROLE {name} LOGIN")
    yield make_url(database).set(username=name).render_as_string(hide_password=False)
    change(database, f"DROP OWNED BY {name}")
    on_server(f"DROP ROLE {name}")


# --- making


def test_the_columns_are_those_of_the_tables(engine: Engine, database: str) -> None:
    kinds = dict(
        read(
            database,
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = "
            "'evaluations'",
        )
    )
    assert kinds["samples"] == "bigint"
    assert kinds["test_loss"] == "double precision"  # 'real' would keep half of the digits


def test_numbers_of_any_size_come_back_exactly(engine: Engine, database: str) -> None:
    seed, samples, tiny = 2**63 - 1, 2**40, 5e-324
    end = events.Finished(0.1 + 0.2, tiny, 1.7976931348623157e308, totals(1))
    score = events.Evaluated(
        1, 2**31 - 1, samples, math.nextafter(1, 0), math.inf, math.nan, -math.inf
    )
    record(
        engine,
        [
            started(seed=seed, dimension=2**40),
            events.RoundsDone((a_round(0),), totals(1)),
            score,
            end,
        ],
    )
    assert read(database, "SELECT seed, dimension FROM runs") == [(seed, 2**40)]
    assert read(database, "SELECT final_accuracy, final_loss, final_gap FROM runs") == [
        (end.accuracy, tiny, end.gap)
    ]
    row = (1, 1, 2**31 - 1, samples, math.nextafter(1, 0), None, None, None, None, None, None)
    assert read(database, "SELECT * FROM evaluations") == [row]
    assert list(queries.query(open_read_only(database), "SELECT * FROM evaluations").rows) == [row]


def test_rows_belong_to_a_run(engine: Engine) -> None:
    with pytest.raises(IntegrityError, match="foreign key"), engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO evaluations (run_id, round, budget, samples) VALUES (99, 0, 0, 0)"
        )


def at_once(database: str, program: str, count: int) -> list[str]:
    """What so many processes print that run a program, and come to their first transaction
    together.
    """
    words = [sys.executable, "-c", program, database]
    pipe = subprocess.PIPE
    with turn_taken(database, waiting=count):
        programs = [
            subprocess.Popen(words, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
            for _ in range(count)
        ]
    answers = [program.communicate(timeout=120) for program in programs]
    assert [program.returncode for program in programs] == [0] * count, answers
    return [out for out, _ in answers]


OPEN = (
    "import sys; from dynabro_cli.runs.store.open.engine import open_for_writing; "
    "open_for_writing(sys.argv[1]); print('made')"
)


@pytest.mark.thorough
def test_four_processes_make_the_tables_at_once(database: str) -> None:
    assert at_once(database, OPEN, 4) == ["made\n"] * 4
    assert read(database, "SELECT version_num FROM alembic_version") == [(f"{SCHEMA_VERSION:04}",)]


@pytest.mark.parametrize(
    ("make", "operation"),
    [
        ("CREATE TABLE accounts (name TEXT)", open_for_writing),
        ("CREATE TABLE alembic_version AS SELECT '0001' AS version_num", open_for_writing),
        ("CREATE TABLE alembic_version AS SELECT 'ae1027a6acf' AS version_num", open_for_writing),
        ("CREATE TABLE alembic_version (version_num TEXT)", open_for_writing),
        ("CREATE TABLE accounts (name TEXT)", open_read_only),
    ],
)
def test_a_stranger_is_refused_and_left_as_it_is(
    operation: Callable[[str], object], make: str, database: str
) -> None:
    change(database, make)
    names = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    before = read(database, names)
    with pytest.raises(DatabaseError, match="is not a dynabro database"):
        operation(database)
    assert read(database, names) == before


@pytest.mark.parametrize("name", ["ae1027a6acf", None])
def test_a_version_that_is_none(name: str | None, engine: Engine, database: str) -> None:
    change(database, "DELETE FROM alembic_version")
    if name:
        change(database, "INSERT INTO alembic_version VALUES (?)", name)
    for operation in OPENERS:
        with pytest.raises(DatabaseError, match="is not a dynabro database"):
            operation(database)


def test_an_empty_database_cannot_be_read(database: str) -> None:
    with pytest.raises(
        DatabaseError, match=r"has no tables yet\. Try: dynabro run --db postgresql"
    ):
        open_read_only(database)
    assert read(database, "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


@pytest.mark.parametrize("operation", OPENERS)
def test_a_newer_database_says_upgrade_the_program(
    operation: Callable[[str], object], engine: Engine, database: str
) -> None:
    change(database, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseError, match=r"schema version 9999.*pip install --upgrade dynabro"):
        operation(database)


# --- servers and users


@pytest.mark.parametrize("operation", OPENERS)
@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://me:secret@127.0.0.1:1/results", "{server}/nosuch"]
)
def test_a_server_or_database_that_is_not_there(
    operation: Callable[[str], object], url: str, database: str
) -> None:
    if url.startswith("{server}"):
        url = make_url(database).set(database="nosuch").render_as_string(hide_password=False)
    with pytest.raises(NotFoundError, match="cannot be reached: ") as caught:
        operation(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_password_is_shown_nowhere() -> None:
    url = "postgresql+psycopg://me:secret@host/results?password=secret&sslpassword=secret&sslmode=require"
    assert shown(url) == "postgresql+psycopg://me:***@host/results?sslmode=require"
    for url in (
        "postgresql+psycopg://me:se@cret@host/results",
        "postgresql+psycopg://me:se/cret@x:1@host/results?a=@",
    ):
        assert shown(url) == "postgresql+psycopg://***@host/results"
        for opener in OPENERS:
            with pytest.raises(DatabaseError, match="Try: %40 in its place") as caught:
                opener(url)
            assert "cret" not in str(caught.value)


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_driver_that_is_missing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        DatabaseError, match=r"its driver is not installed .*. Try: pip install 'psycopg\[binary\]'"
    ):
        open_for_writing("postgresql+psycopg://me:secret@host/results")


def test_a_user_without_rights(engine: Engine, role: str, database: str) -> None:
    with pytest.raises(
        CannotWriteError, match=r"permission denied .*\. Try: ask its owner for rights"
    ):
        open_for_writing(role)
    name = make_url(role).username
    change(database, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
    record(engine, whole_run())
    assert list(queries.query(open_read_only(role), "SELECT status FROM runs").rows) == [
        ("finished",)
    ]
    with pytest.raises(CannotWriteError, match="permission denied for table runs"):
        record(open_for_writing(role), [started("cd" * 32)])


# --- turns


def test_a_writer_waits_for_another(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_for_writing(database)
    with engine.connect() as connection:
        # only read so far: what is read is to stay true
        connection.exec_driver_sql("SELECT COUNT(*) FROM runs")
        monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.1")
        with pytest.raises(DBAPIError, match="lock timeout"), other.begin():
            pass
        with pytest.raises(BusyError, match=r"was locked by another program for 0\.1 s"):
            open_for_writing(database)
        assert list(queries.query(open_read_only(database), "SELECT COUNT(*) FROM runs").rows) == [
            (0,)
        ]
    # a slow machine is silent for longer in the middle of a transaction
    monkeypatch.delenv("DYNABRO_BUSY_SECONDS")
    record(other, whole_run())
    other.dispose()


def test_who_stops_in_the_middle_of_a_turn_loses_it(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_for_writing(database)
    with engine.connect() as stopped:
        monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "0.3")
        stopped.exec_driver_sql("SELECT 1")
        monkeypatch.delenv("DYNABRO_BUSY_SECONDS")
        record(other, whole_run())  # gets its turn
        with pytest.raises(DBAPIError) as caught:
            stopped.exec_driver_sql("DELETE FROM runs")
    assert isinstance(translate(caught.value, "results"), DisconnectedError)
    assert read(database, "SELECT status FROM runs") == [("finished",)]
    other.dispose()


CLAIM = """
import sys
from dynabro_cli.core.errors import AlreadyStoredError, RunHeldError
from dynabro_cli.runs.store.open.engine import open_for_writing
from dynabro_cli.runs.store.write.standing import never
from tests.runs.store.made import record, whole_run
engine = open_for_writing(sys.argv[1])
for number in range(30):
    try:
        record(engine, whole_run(key=f"{number:064}"), repeat=never)
        print(number)
    except (AlreadyStoredError, RunHeldError):
        pass
"""


@pytest.mark.thorough
def test_a_run_is_made_by_one_of_many(database: str) -> None:
    made = [line for out in at_once(database, CLAIM, 3) for line in out.split()]
    assert sorted(made, key=int) == [str(number) for number in range(30)]
    assert read(database, "SELECT COUNT(*), COUNT(DISTINCT run_id) FROM rounds") == [(90, 30)]
    assert read(database, "SELECT status, COUNT(*) FROM runs GROUP BY status") == [("finished", 30)]


# --- trouble


def test_a_connection_that_is_lost_between_writes_is_made_again(
    engine: Engine, database: str
) -> None:
    recorder = record(engine, [started(), rounds(0, 4)])
    cut_connections(database)
    recorder.record(finished(5))
    assert read(database, "SELECT status, rounds FROM runs") == [("finished", 5)]


def test_a_server_that_only_reads_for_a_while_is_waited_for(engine: Engine, database: str) -> None:
    """As during a failover."""
    recorder = record(engine, [started(), rounds(0, 4)])
    setting = f"ALTER DATABASE {make_url(database).database} SET default_transaction_read_only ="
    on_server(f"{setting} on")
    cut_connections(database)
    back = threading.Timer(1.5, on_server, [f"{setting} off"])
    back.start()
    with pytest.warns(OutageWarning, match="is back after"):
        recorder.record(finished(5))
    back.join()
    assert read(database, "SELECT status, rounds FROM runs") == [("finished", 5)]


def test_a_time_that_the_driver_cannot_read_is_damage(engine: Engine, database: str) -> None:
    record(engine, whole_run())
    change(database, "UPDATE runs SET started_at = 'infinity'")
    with pytest.raises(DatabaseError, match="timestamp too large"):
        list(queries.query(open_read_only(database), "SELECT started_at FROM runs").rows)


@pytest.mark.usefixtures("clock")
def test_a_connection_that_is_lost_in_a_write_loses_nothing(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record(engine, [started(), rounds(0, 4), evaluated(5)])

    @event.listens_for(engine, "before_cursor_execute")
    def cut(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO evaluations"):
            cut_connections(database)

    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "1")
    with pytest.warns(OutageWarning), pytest.raises(DisconnectedError) as caught:
        recorder.record(finished(5))
    event.remove(engine, "before_cursor_execute", cut)
    assert caught.value.exit_code == 75
    assert "repeat the command" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert read(database, "SELECT status, (SELECT COUNT(*) FROM rounds) FROM runs") == [
        ("running", 0)
    ]
    recorder.record(finished(5))
    assert read(database, "SELECT status, (SELECT COUNT(*) FROM rounds) FROM runs") == [
        ("finished", 5)
    ]


def test_a_connection_that_is_cut_while_rows_are_sent_is_replaced(
    engine: Engine, database: str
) -> None:
    """psycopg sends many rows in a pipeline; a connection that is cut in it stays open, and busy
    for ever.
    """
    recorder = record(engine, [started(), rounds(0, 4)])

    @event.listens_for(engine, "do_executemany", once=True)
    def leave_busy(cursor: Any, *_: object) -> None:
        connection = cursor.connection.pgconn
        connection.enter_pipeline_mode()
        connection.send_query_params(b"SELECT 1", None)
        # psycopg.OperationalError: cannot exit pipeline mode while busy
        connection.exit_pipeline_mode()

    recorder.record(finished(5))
    assert read(database, "SELECT status, (SELECT COUNT(*) FROM rounds) FROM runs") == [
        ("finished", 5)
    ]


def test_a_server_that_takes_no_connections_for_now(
    engine: Engine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record(engine, [started()])
    allow_connections(database, False)
    monkeypatch.setenv("DYNABRO_BUSY_SECONDS", "1")
    with (
        pytest.warns(OutageWarning),
        pytest.raises(DisconnectedError, match="cannot be reached for now"),
    ):
        recorder.record(finished(0))
    for opened in (open_for_writing, open_read_only):
        with pytest.raises(DisconnectedError, match="cannot be reached for now"):
            opened(database)
    monkeypatch.setattr(translation, "REACHED", set())
    monkeypatch.setattr(servers, "REACHED", translation.REACHED)
    for opened in (open_for_writing, open_read_only):
        with pytest.raises(NotFoundError):  # who comes new may have mistaken the name
            opened(database)
    translation.REACHED.add(shown(database))
    monkeypatch.delenv("DYNABRO_BUSY_SECONDS")
    back = threading.Timer(1.0, allow_connections, (database, True))
    back.start()
    with pytest.warns(OutageWarning) as told:
        recorder.record(finished(0))
    back.join()
    lines = [str(one.message) for one in told]
    assert [line.partition(" ")[0] for line in lines] == [shown(database)] * 2
    assert "cannot be reached; waiting for its server, at most 60 s" in lines[0]
    assert " is back after " in lines[1]


@pytest.mark.parametrize(
    "moment", ["while it is opened", "while it is compared", "while it is written"]
)
def test_an_outage_in_the_middle_of_a_merge(
    moment: str, engine: Engine, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no wrong name: the command waits, or says that the same command is to be repeated."""
    other = tmp_path / "other.db"
    record(open_for_writing(str(other)), sound.run(1))
    waits = moment == "while it is opened"
    module, name, at = {
        "while it is opened": (engine_module, "_create_or_check", 1),
        "while it is compared": (merging, "snapshot", 2),
        "while it is written": (merging, "_store", 1),
    }[moment]
    real, calls = getattr(module, name), []

    def interrupted(*arguments: Any) -> Any:
        calls.append(name)
        if len(calls) == at:
            allow_connections(database, False)
            if waits:
                threading.Timer(1.5, allow_connections, (database, True)).start()
        return real(*arguments)

    monkeypatch.setattr(module, name, interrupted)
    if waits:
        with pytest.warns(OutageWarning, match="is back after"):
            assert len(merge(str(other), database).copied) == 1
    else:
        with pytest.raises(DisconnectedError):
            merge(str(other), database)
        allow_connections(database, True)
        assert len(merge(str(other), database).copied) == 1


def unanswered(engine: Engine, number: int) -> Callable[[], int]:
    """Have the connection be lost right after commit ``number`` of an engine, from 0; return a
    function that counts commits.
    """
    commit, done = engine.dialect.do_commit, [0]

    def committing(connection: Any) -> None:
        commit(connection)
        done[0] += 1
        if done[0] == number + 1:
            connection.dbapi_connection.close()
            raise engine.dialect.dbapi.OperationalError("server closed the connection unexpectedly")  # type: ignore[union-attr]

    engine.dialect.do_commit = committing  # type: ignore[method-assign]
    return lambda: done[0]


HAPPENINGS = [
    *(
        started(),
        rounds(0, 4),
        evaluated(5),
        checkpointed(5),
        rounds(5, 9),
        evaluated(10),
        checkpointed(10, b"more"),
    ),
    *(rounds(10, 12), evaluated(13), finished(13)),
]


@pytest.mark.parametrize(
    ("number", "again"), [*((number, False) for number in range(5)), (0, True), (3, True)]
)
def test_a_commit_without_an_answer_is_not_made_twice(
    number: int, again: bool, engine: Engine, database: str
) -> None:
    if again:
        record(engine, HAPPENINGS)
    commits = unanswered(engine, number)
    record(engine, HAPPENINGS)
    # the start, two checkpoints, and the end; then nothing is lost
    assert commits() >= 5 if number < 4 else commits() == 4
    assert read(database, "SELECT run_key, status, rounds, owner FROM runs") == [
        (KEY, "finished", 13, None)
    ]
    assert read(database, "SELECT round FROM rounds ORDER BY round") == [
        (number,) for number in range(13)
    ]
    assert read(database, "SELECT round FROM evaluations ORDER BY round") == [(5,), (10,), (13,)]
    with snapshot(database) as connection:
        assert row_digests.digest_problems(connection) == {}


def test_a_resumed_run_whose_claim_is_not_answered(engine: Engine, database: str) -> None:
    record(engine, HAPPENINGS[:4]).interrupted()
    change(database, "UPDATE runs SET wall_seconds = 1000")
    recorder = Recorder(engine)
    assert recorder.checkpoint(KEY) == b"state"
    commits = unanswered(engine, 0)
    for happening in (events.Started(KEY, RECORD, totals(5)), *HAPPENINGS[4:]):
        recorder.record(happening)
    assert commits() > 3
    assert read(database, "SELECT COUNT(*), COUNT(DISTINCT round) FROM rounds") == [(13, 13)]
    ((seconds,),) = read(database, "SELECT wall_seconds FROM runs WHERE status = 'finished'")
    assert 1000 <= seconds < 1500  # and not twice


@pytest.mark.usefixtures("clock")
def test_a_run_that_another_took_over_in_an_outage_stays_lost(
    engine: Engine, database: str
) -> None:
    recorder = record(engine, [started(), rounds(0, 4)])
    unanswered(engine, 0)
    commit = engine.dialect.do_commit

    def taken_over(connection: Any) -> None:
        try:
            commit(connection)
        except Exception:
            change(database, "UPDATE runs SET owner = 'another'")
            raise

    engine.dialect.do_commit = taken_over  # type: ignore[method-assign]
    with pytest.raises(LostRunError, match="was taken over by another process"):
        recorder.record(checkpointed(5))
    assert read(database, "SELECT status, owner FROM runs") == [("running", "another")]


def test_a_sweep_whose_first_commit_is_not_answered(engine: Engine, database: str) -> None:
    unanswered(engine, 0)
    with SweepEntry(engine, name="small", runs=1, listed={KEY: None}, jobs=1, executor="local"):
        assert read(database, "SELECT name, status FROM sweeps") == [("small", "running")]
        assert read(database, "SELECT run_key FROM sweep_runs") == [(KEY,)]
    assert read(database, "SELECT status FROM sweeps") == [("finished",)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", StorageError),
        ("53300", DisconnectedError),
        ("57P03", DisconnectedError),
        ("40P01", DisconnectedError),
        ("55P03", BusyError),
        ("42501", CannotWriteError),
        ("42703", DatabaseError),
    ],
)
def test_what_the_codes_of_errors_mean(code: str, kind: type[Exception], engine: Engine) -> None:
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'bang' USING ERRCODE = '{code}'; END $$"
    with pytest.raises(DBAPIError) as caught, engine.begin() as connection:
        connection.exec_driver_sql(raising)
    assert type(translate(caught.value, "results")) is kind


# --- reading only

WRITES = [
    "INSERT INTO alembic_version VALUES ('0002')",
    "INSERT INTO alembic_version VALUES ('0002') RETURNING version_num",
    "UPDATE runs SET status = 'failed'",
    "DELETE FROM runs",
    "MERGE INTO runs USING rounds ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE runs CASCADE",
    "CREATE TABLE more (x INTEGER)",
    "CREATE TEMP TABLE more (x INTEGER)",
    "CREATE VIEW more AS SELECT 1",
    "SELECT 1 AS x INTO more",
    "ALTER TABLE runs RENAME TO more",
    "DROP TABLE runs CASCADE",
    "GRANT ALL ON runs TO PUBLIC",
    "COPY runs TO PROGRAM 'cat > {file}'",
    "COPY runs TO '{file}'",
    "COPY runs TO STDOUT",
    "COPY runs FROM PROGRAM 'echo'",
    "DO $$ BEGIN DELETE FROM runs; END $$",
    "CALL more()",
    "SET default_transaction_read_only = off",
    "SET TRANSACTION READ WRITE",
    "BEGIN",
    "COMMIT",
    "VACUUM",
    "NOTIFY more",
    "LOCK TABLE runs",
    "SELECT 1; DELETE FROM runs",
    "SELECT 1; COMMIT; DELETE FROM runs",
    "COMMIT; BEGIN READ WRITE; DELETE FROM runs; COMMIT",
    "WITH gone AS (DELETE FROM runs RETURNING id) SELECT * FROM gone",
    "SELECT * FROM runs FOR UPDATE",
    "SELECT nextval('runs_id_seq')",
    "SELECT setval('runs_id_seq', 99)",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT more()",
]
WRITER = "CREATE FUNCTION more() RETURNS INTEGER LANGUAGE sql AS 'DELETE FROM runs RETURNING id'"
STATE = [
    "SELECT * FROM runs",
    "SELECT last_value FROM runs_id_seq",
    (
        "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "ORDER BY oid"
    ),
    "SELECT COUNT(*) FROM pg_largeobject_metadata",
]


def is_refused(attempt: Callable[[], queries.Table]) -> bool:
    try:
        list(attempt().rows)
    except SpecError:
        return True
    return False


def test_a_reader_writes_nothing(engine: Engine, database: str) -> None:
    record(engine, whole_run())
    change(database, WRITER)
    file = Path("/tmp") / f"{make_url(database).database}.csv"  # where the server's user can write
    before = [read(database, state) for state in STATE]
    reader = open_read_only(database)
    for sql in WRITES:
        words = sql.format(file=file)
        assert is_refused(lambda: queries.query(reader, words)), sql  # noqa: B023
        assert is_refused(lambda: queries.list_runs(reader, f"1 = 1); {words}; SELECT (1")), sql  # noqa: B023
        assert [read(database, state) for state in STATE] == before, sql
    assert not file.exists()


def test_what_a_function_writes_besides_is_never_committed(engine: Engine, database: str) -> None:
    before = read(database, STATE[-1])
    with contextlib.suppress(SpecError):  # servers from version 16 on refuse it
        list(queries.query(open_read_only(database), "SELECT lo_create(0)").rows)
    assert read(database, STATE[-1]) == before


def test_who_ends_the_own_connection_is_told_so(engine: Engine, database: str) -> None:
    with pytest.raises(DisconnectedError, match="repeat the command"):
        list(
            queries.query(
                open_read_only(database), "SELECT pg_terminate_backend(pg_backend_pid())"
            ).rows
        )


def test_values_are_those_that_sqlite_has(engine: Engine, database: str, tmp_path: Path) -> None:
    sql = (
        "SELECT status, started_at, switched, accepted, COUNT(*), SUM(cost), AVG(cost), 0.5 * "
        "SUM(r.round), AVG(gradient_norm) "
        "FROM runs JOIN rounds AS r ON run_id = runs.id GROUP BY status, started_at, switched, "
        "accepted"
    )
    other = f"{tmp_path}/results.db"
    record(engine, whole_run(4))
    record(open_for_writing(other), whole_run(4))
    change(database, "UPDATE runs SET started_at = '2026-01-01 00:00:00'")
    change(other, "UPDATE runs SET started_at = '2026-01-01 00:00:00.000000'")
    (row,), (expected,) = (
        list(queries.query(open_read_only(name), sql).rows) for name in (database, other)
    )
    assert row == expected
    assert list(map(type, row)) == list(map(type, expected))


def test_a_server_is_given_back_its_connections(engine: Engine, database: str) -> None:
    engine.dispose()
    reader = open_read_only(database)
    list(queries.query(reader, "SELECT 1").rows)
    sql = (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = "
        f"'{make_url(database).database}' AND pid <> pg_backend_pid()"
    )
    with contextlib.closing(connect(database)) as connection:
        assert connection.execute(sql).fetchall() == [(0,)]


CUT = """
import sys
from dynabro_cli.core.errors import DynabroError
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.read.queries import query
from sqlalchemy import event
from tests.postgres import cut_connections

def lose(raw, record):
    def fail():
        raise raw.OperationalError("the connection is lost")
    raw.OperationalError = __import__("psycopg").OperationalError
    raw.close = fail

engine = open_read_only(sys.argv[1])
event.listen(engine, "connect", lose)
rows = iter(query(engine, "SELECT a.i FROM generate_series(1, 3000000) AS a(i)").rows)
next(rows)
cut_connections(sys.argv[1])
try:
    for row in rows:
        pass
except DynabroError as error:
    sys.exit(error.exit_code)
"""
"""Loses the connection while rows are read, and cannot close it, either."""


def test_the_pool_prints_no_traceback(postgres_with_tables: str) -> None:
    """A process without handlers of logs, as the command is; pytest has handlers."""
    ended = subprocess.run(
        [sys.executable, "-c", CUT, postgres_with_tables],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (75, "", "")
