"""Reading: lists of runs, one run, exports, and any SQL of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.runs.store.environments import VERSIONS
from dynabro_cli.runs.store.open.engine import open_for_writing, open_read_only
from dynabro_cli.runs.store.read import queries
from dynabro_cli.runs.store.tables import metadata
from tests.runs.store import sound
from tests.runs.store.made import change, made_once, read, record, rounds, started, whole_run
from tests.runs.store.older_views import OF_1_0

KEYS = ["1a" + "0" * 62, "1b" + "0" * 62, "7" * 64]


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    """Both kinds; a test of one kind only names it by ``parametrize``."""
    kind: str = request.param
    return kind


def fill(engine: Engine) -> None:
    """Three runs: two with results, and one that was interrupted."""
    record(engine, whole_run(3, accuracy=0.25, key=KEYS[0], seed=5))
    record(engine, whole_run(5, accuracy=0.75, key=KEYS[1], method="sgd", seed=4))
    record(
        engine, [started(KEYS[2], method="dynabro", seed=3), rounds(0, 1, level=1, accepted=True)]
    ).interrupted()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Databases that ``fill`` has filled, by kind, which no test changes."""
    with made_once(fill, tmp_path_factory.mktemp("queries")) as original:
        yield original


@pytest.fixture
def stored(
    backend: str, originals: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A database with three runs, to be read only."""
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    return originals(backend)


@pytest.fixture
def reader(stored: str) -> Iterator[Engine]:
    """A reader of ``stored``."""
    engine = open_read_only(stored)
    yield engine
    engine.dispose()


# --- runs


def test_runs_are_listed_in_the_order_of_their_making(reader: Engine) -> None:
    table = queries.list_runs(reader)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert [row["status"] for row in rows] == ["finished", "finished", "interrupted"]
    assert [row["final_accuracy"] for row in rows] == [0.25, 0.75, None]
    assert [row["run_key"] for row in rows] == [key[:10] for key in KEYS]


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("final_accuracy > 0.5 OR status = 'interrupted'", [2, 3]),
        ("id IN (SELECT run_id FROM rounds GROUP BY run_id HAVING COUNT(*) > 2)", [1, 2]),
        ("1 = 0", []),
        (None, [1, 2, 3]),
    ],
)
def test_a_condition_chooses_runs(where: str | None, ids: list[int], reader: Engine) -> None:
    assert [row[0] for row in queries.list_runs(reader, where).rows] == ids


def test_a_condition_is_one_condition(reader: Engine) -> None:
    # without brackets around it, OR would let rows past what is joined to it by AND
    sql = queries.EXPORTS["final"].format(
        cells="final_accuracy", where=queries._condition("n = 1 OR n = 2")
    )
    assert sql.endswith("WHERE (n = 1 OR n = 2)")


# --- one run


def test_a_run_by_its_id(reader: Engine, stored: str) -> None:
    row = queries.find_run(reader, "2")
    assert list(row) == [*(column.name for column in metadata.tables["runs"].columns), "versions"]
    (expected,) = read(stored, f"SELECT *, {VERSIONS} FROM runs WHERE id = 2")
    assert list(map(str, row.values())) == list(map(str, expected))


@pytest.mark.parametrize(("name", "run_id"), [("1a", 1), (KEYS[1], 2), ("777777", 3)])
def test_a_run_by_the_beginning_of_its_key(name: str, run_id: int, reader: Engine) -> None:
    assert queries.find_run(reader, name)["id"] == run_id


def test_an_id_goes_before_a_key(engine: Engine, database: str) -> None:
    record(
        engine,
        [event for number in range(3) for event in whole_run(2, key=f"2{number}" + "0" * 62)],
    )
    assert queries.find_run(open_read_only(database), "2")["run_key"].startswith("21")


def test_an_ambiguous_beginning(engine: Engine, database: str) -> None:
    record(
        engine, [event for letter in "ab" for event in whole_run(2, key=f"9{letter}" + "0" * 62)]
    )
    with pytest.raises(
        NotFoundError, match=r"2 runs have a key that begins with '9'\. Try: dynabro runs"
    ):
        queries.find_run(open_read_only(database), "9")


@pytest.mark.parametrize("name", ["4", "1A", "%", "-1", "' OR '1'='1", "9" * 30, "²"])
def test_a_run_that_is_not_there(name: str, reader: Engine) -> None:
    with pytest.raises(NotFoundError) as caught:
        queries.find_run(reader, name)
    assert (
        str(caught.value)
        == f"there is no run {name!r}. Try: dynabro runs, which lists ids and keys"
    )


def test_the_histogram_of_a_run(engine: Engine, database: str) -> None:
    events = [
        started(),
        rounds(0, 3, byzantine=8),
        rounds(4, 4, byzantine=0),
        rounds(5, 9, byzantine=12),
    ]
    record(engine, events).interrupted()
    reader = open_read_only(database)
    assert queries.histogram(reader, 1) == [(0, 1), (8, 4), (12, 5)]
    assert queries.histogram(reader, 2) == []


def test_the_histogram_of_a_thinned_run_is_that_of_all_its_rounds(
    engine: Engine, database: str
) -> None:
    record(engine, [*whole_run(4), *whole_run(40, key="cd" * 32, seed=4)])
    before = [queries.histogram(open_read_only(database), run) for run in (1, 2)]
    sound.thin(database, 2, 10)
    assert read(database, "SELECT COUNT(*) FROM rounds WHERE run_id = 2") == [(5,)]
    assert (
        [queries.histogram(open_read_only(database), run) for run in (1, 2)]
        == before
        == [[(8, 4)], [(8, 40)]]
    )
    table = queries.query(
        open_read_only(database), "SELECT * FROM byzantine_histogram ORDER BY run_id"
    )
    assert (table.columns, list(table.rows)) == (
        ["run_id", "byzantine", "rounds"],
        [(1, 8, 4), (2, 8, 40)],
    )


@pytest.mark.parametrize("backend", ["sqlite"])
def test_the_histogram_of_one_run_reads_no_other(engine: Engine, database: str) -> None:
    sql = (
        "EXPLAIN QUERY PLAN SELECT byzantine, rounds FROM byzantine_histogram WHERE run_id = "
        "1 ORDER BY byzantine"
    )
    steps = [row[3] for row in read(database, sql)]
    # the few rows that it has
    assert [step for step in steps if step.startswith("SCAN")] == ["SCAN byzantine_histogram"]
    assert sum(step.startswith("SEARCH") for step in steps) == 4


# --- exports

EXPORTED = {
    "curves": (
        "SELECT runs.id, task, model, method, aggregator, pre_aggregators, attack, switching, "
        "seed, status, round, "
        "e.budget, samples, test_accuracy, test_loss, train_loss, gap, precision, data, "
        "validation_accuracy, validation_loss "
        "FROM runs JOIN evaluations e ON e.run_id = runs.id {} ORDER BY 1, round"
    ),
    "final": "SELECT * FROM final_accuracy {}",
    "rounds": (
        "SELECT runs.id, task, method, aggregator, attack, switching, seed, round, r.budget, "
        "level, cost, r.byzantine, "
        "switched, dynamic, accepted, r.learning_rate, gradient_norm, aggregation_error, "
        "precision, data "
        "FROM runs JOIN rounds r ON r.run_id = runs.id {} "
        "ORDER BY 1, round"
    ),
}


@pytest.mark.parametrize("where", [None, "method = 'sgd' OR method LIKE 'm%'"])
@pytest.mark.parametrize("what", EXPORTED)
def test_an_export_has_every_row_and_column(
    what: str, where: str | None, reader: Engine, stored: str
) -> None:
    table = queries.export(reader, what, where)
    rows = list(table.rows)
    expected = read(stored, EXPORTED[what].format(f"WHERE {where}" if where else ""))
    assert expected
    names = [
        "run_id",
        *(part.split(".")[-1] for part in EXPORTED[what].split(" FROM ")[0].split(", ")[1:]),
    ]
    if what == "final":
        names = table.columns
    columns = [table.columns.index(name) for name in names]
    assert [tuple(row[column] for column in columns) for row in rows] == expected


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize("what", queries.EXPORTS)
def test_no_two_columns_of_an_export_have_one_name(what: str, reader: Engine) -> None:
    columns = queries.export(reader, what).columns
    assert len(set(columns)) == len(columns)


def test_a_view_of_the_first_version_is_read_and_gets_its_new_column(
    database: str, engine: Engine
) -> None:
    record(engine, whole_run(4))
    engine.dispose()
    for statement in ("DROP VIEW final_accuracy", OF_1_0):
        change(database, statement)
    reader = open_read_only(database)
    assert queries.query(reader, "SELECT * FROM final_accuracy").columns[-1] == "ci_high"
    (row,) = queries.export(reader, "final").frame().to_dict("records")
    assert (row["rule"], row["n"]) == ("cwtm", 1)
    for _ in range(2):
        open_for_writing(database).dispose()
        assert read(database, "SELECT rule, n FROM final_accuracy") == [("cwtm", 1)]


def workers_by_view(reader: Engine) -> list[tuple[int, ...]]:
    sql = "SELECT run_id, tick, worker FROM byzantine_workers ORDER BY run_id, tick, worker"
    return [tuple(row) for row in queries.query(reader, sql).rows]


def test_byzantine_workers_count_from_0(database: str, engine: Engine) -> None:
    """Also numbers that contain each other, an empty set, and runs with fewer workers."""
    for key in KEYS[:2]:
        record(engine, whole_run(4, key=key))
    (first,), (second,) = read(database, "SELECT id FROM runs ORDER BY id")
    sets = {
        (first, 1): [1, 11],
        (first, 5): [],
        (first, 9): [2, 12, 21],
        (second, 1): [1],
        (second, 4): [3],
    }
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE runs SET workers = CASE id WHEN :id THEN 22 ELSE 3 END"), {"id": first}
        )
        for (run, tick), workers in sets.items():
            words = str(workers).replace(" ", "")
            connection.execute(text(f"INSERT INTO identities VALUES ({run}, {tick}, '{words}')"))
    expected = [
        (run, tick, worker - 1) for (run, tick), workers in sets.items() for worker in workers
    ]
    assert workers_by_view(open_read_only(database)) == expected
    engine.dispose()
    change(database, "DROP VIEW byzantine_workers")
    reader = open_read_only(database)
    with pytest.raises(SpecError, match=r"Try: dynabro run, .* adds the view byzantine_workers"):
        workers_by_view(reader)
    for _ in range(2):
        open_for_writing(database).dispose()
        assert workers_by_view(open_read_only(database)) == expected


def test_every_export_is_tested() -> None:
    assert set(EXPORTED) == set(queries.EXPORTS)


# --- SQL


WRONG = {
    "sqlite": [
        ("SELECT nosuch FROM runs", "SQL: no such column: nosuch"),
        ("SELEC 1", 'SQL: near "SELEC": syntax error'),
        ("SELECT (", "SQL: incomplete input"),
        ("SELECT 'a\nb' + c", "SQL: no such column: c"),
        ("SELECT 1; SELECT 2", "SQL: You can only execute one statement at a time"),
        ("SELECT :name", "SQL: "),
        ("SELECT json_extract('{', '$')", "SQL: malformed JSON"),
        ("-- nothing", "the statement returns no rows"),
    ],
    "postgresql": [
        ("SELECT nosuch FROM runs", 'SQL: column "nosuch" does not exist'),
        (
            "SELEC 1",
            'only reading is allowed here (syntax error at or near "SELEC"). Try: a SELECT',
        ),
        ("SELECT 'a\nb' || c", 'SQL: column "c" does not exist'),
        ("SELECT 1; SELECT 2", "SQL: cannot insert multiple commands into a prepared statement"),
        (
            "SELECT 1; COMMIT; DROP TABLE runs",
            "SQL: cannot insert multiple commands into a prepared statement",
        ),
        ("SELECT :name", 'SQL: syntax error at or near ":"'),
        ("SELECT %s", "SQL: "),
        ("SELECT $1", "SQL: "),
        ("SELECT 'a\0b'", "SQL: "),
        ("SELECT '{'::json", "SQL: invalid input syntax for type json"),
        ("-- nothing", "SQL: syntax error at end of input"),
    ],
}


@pytest.mark.parametrize(
    ("backend", "sql", "message"),
    [(kind, *case) for kind, cases in WRONG.items() for case in cases],
)
def test_wrong_sql_is_told_in_a_line(sql: str, message: str, reader: Engine) -> None:
    with pytest.raises(SpecError) as caught:
        list(queries.query(reader, sql).rows)
    (problem,) = caught.value.problems
    assert problem.startswith(message)
    assert "\n" not in problem
    assert "sqlalche.me" not in problem


def test_sql_that_is_no_text(reader: Engine) -> None:
    with pytest.raises(SpecError):  # what a shell makes of bytes that are not UTF-8
        queries.query(reader, "SELECT '\udcff'")


@pytest.mark.parametrize("where", ["nosuch = 1", "1 = 1) UNION SELECT (1", "method ="])
def test_a_wrong_condition_is_told_in_a_line(where: str, reader: Engine) -> None:
    for read_all in (
        lambda: queries.list_runs(reader, where),
        lambda: queries.export(reader, "curves", where),
    ):
        with pytest.raises(SpecError, match=r"^SQL: "):
            list(read_all().rows)


def test_sql_that_writes_is_refused(reader: Engine, stored: str) -> None:
    before = read(stored, "SELECT * FROM runs")
    with pytest.raises(SpecError, match="only reading is allowed here"):
        queries.query(reader, "DELETE FROM runs")
    assert read(stored, "SELECT * FROM runs") == before


def test_special_characters_of_drivers_are_plain_here(reader: Engine) -> None:
    assert list(queries.query(reader, r"SELECT '%s %(a)s :b ::c \:d \ ?', 7 % 4").rows) == [
        (r"%s %(a)s :b ::c \:d \ ?", 3)
    ]


def test_the_columns_of_no_rows(reader: Engine) -> None:
    table = queries.query(reader, "SELECT id, run_key AS key FROM runs WHERE 1 = 0")
    assert table.columns == ["id", "key"]
    assert list(table.rows) == []


def test_a_large_result_comes_in_order_and_as_it_is_read(reader: Engine) -> None:
    # endless: it can only be read where rows are handed on as they come
    endless = (
        "WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c) SELECT x, x * x FROM c"
    )
    count = 3 * queries.FETCH_ROWS + 7
    rows = list(itertools.islice(queries.query(reader, endless).rows, count))
    assert rows == [(x, x * x) for x in range(count)]


@pytest.mark.thorough
def test_a_large_export_keeps_the_order_of_rounds(engine: Engine, database: str) -> None:
    count = 2 * queries.FETCH_ROWS + 3
    record(engine, [started(), rounds(0, count - 1)]).interrupted()
    record(engine, [started("cd" * 32), rounds(0, count - 1)]).interrupted()
    table = queries.export(open_read_only(database), "rounds")
    found = [(row[0], row[table.columns.index("round")]) for row in table.rows]
    assert found == [(run, number) for run in (1, 2) for number in range(count)]


def test_a_frame_made_of_a_frame_has_the_same_texts(reader: Engine) -> None:
    made = queries.query(reader, "SELECT 'a text of one row' AS a").frame()
    assert made.take([0, 0])["a"].iloc[1] is made["a"].iloc[0]
