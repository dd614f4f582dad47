"""``dynabro browse``: read-only, on this machine only, with the meaning of every table and
column.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from dynabro_cli.answers.figures.report.site import NAME, VIEWS, described
from dynabro_cli.runs.store.read.queries import EXAMPLES
from dynabro_cli.runs.store.tables import metadata
from dynabro_cli.runs.store.views import VIEWS as ALL_VIEWS
from tests.answers.figures.report.browser import browser, opened
from tests.cli.conftest import Dynabro
from tests.cli.test_app import environment
from tests.runs.store.made import change, read

DOCUMENT = Path(__file__).parents[4] / "docs" / "database.md"
thorough = pytest.mark.thorough


def test_every_table_and_column_has_its_meaning() -> None:
    tables = described("results.db")["databases"][NAME]["tables"]
    for name, table in metadata.tables.items():
        assert tables[name]["description"] == str(table.comment).replace("`", "")
        assert tables[name]["columns"] == {
            column.name: str(column.comment).replace("`", "") for column in table.columns
        }
    assert set(VIEWS) == set(ALL_VIEWS)
    for name, table in tables.items():
        known = (
            set(metadata.tables["runs" if name == "final_accuracy" else name].columns.keys())
            if "facets" in table
            else set()
        )
        assert set(table.get("facets", ())) <= known, name


def test_the_table_of_rounds_says_that_runs_are_thinned() -> None:
    """Also above statements, where Datasette shows the description of the database."""
    database = described("results.db", "3 of 4 runs are thinned")["databases"][NAME]
    assert "3 of 4 runs are thinned" in database["tables"]["rounds"]["description"]
    assert database["description"] == "3 of 4 runs are thinned"
    assert described("results.db")["databases"][NAME]["description"] is None


def test_every_column_of_a_view_has_its_meaning(results: Path) -> None:
    tables = described("results.db")["databases"][NAME]["tables"]
    for view in ALL_VIEWS:
        columns = {name for (name,) in read(results, "SELECT name FROM pragma_table_info(?)", view)}
        assert set(tables[view]["columns"]) == columns
        assert all(tables[view]["columns"].values())


def test_the_queries_are_the_documents() -> None:
    blocks = re.findall(
        r"^```sql\n/\* (.*?) \*/\n(.*?);\n```",
        DOCUMENT.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    assert {title: sql.strip() for title, sql in EXAMPLES.items()} == dict(blocks)
    assert len(blocks) == 6


@pytest.mark.parametrize("missing", ["datasette", "uvicorn"])
def test_without_the_extra(
    missing: str, dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == missing else find(name, *more),
    )
    outcome = dynabro("browse")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems[-1].endswith("is not installed. Try: pip install 'dynabro[web]'")


needs_datasette = pytest.mark.skipif(
    importlib.util.find_spec("datasette") is None,
    reason="Datasette is not installed: pip install 'dynabro[web]'",
)


@needs_datasette
@pytest.mark.parametrize(
    ("database", "code", "problem"),
    [
        ("nosuch.db", 66, "there is no database nosuch.db"),
        ("notes.txt", 65, "notes.txt is not a dynabro database"),
        (
            "postgresql+psycopg://me:secret@host/results",
            2,
            (
                "db=postgresql+psycopg://me:***@host/results: a server's database. Try: dynabro db "
                "merge"
            ),
        ),
    ],
)
def test_databases_that_cannot_be_browsed(
    database: str, code: int, problem: str, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "notes.txt").write_text("these are sixteen letters and more")
    outcome = dynabro("browse", "--db", database)
    assert (outcome.code, outcome.out) == (code, "")
    (line,) = outcome.problems
    assert line.startswith(problem)


@needs_datasette
def test_a_port_that_is_taken(dynabro: Dynabro, results: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        outcome = dynabro("browse", "--port", str(port))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.problems[-1].startswith(f"port={port}: it cannot be used (")


class Site:
    """A process of ``dynabro browse``."""

    def __init__(self, database: Path) -> None:
        words = [
            sys.executable,
            "-m",
            "dynabro_cli",
            "browse",
            "--db",
            str(database),
            "--port",
            "0",
        ]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.port = urlsplit(self.url).port or 0

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return status and content of an address."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=200)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; return exit code and standard error."""
        self.process.send_signal(number)
        return self.process.wait(60), self.process.communicate()[1]


@pytest.fixture
def database(real_database: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(real_database, tmp_path / "a?mode=rwc#%41.db"))


@pytest.fixture
def site(database: Path) -> Iterator[Site]:
    pytest.importorskip(
        "datasette", reason="Datasette is not installed: pip install 'dynabro[web]'"
    )
    started = Site(database)
    yield started
    if started.process.poll() is None:
        started.process.kill()
    started.process.communicate()


@thorough
def test_it_reads_what_others_write_and_writes_nothing(site: Site, database: Path) -> None:
    status, text = site.get(f"/{NAME}/runs.json?_shape=objects&_size=max")
    assert (status, len(json.loads(text)["rows"])) == (200, 7)
    change(database, "UPDATE runs SET sweep = 'meanwhile' WHERE id = 3")
    assert '"sweep": "meanwhile"' in site.get(f"/{NAME}/runs.json?_shape=objects&id=3")[1]
    before = read(database, "SELECT * FROM runs")
    writes = [
        "DELETE FROM runs",
        "ATTACH 'x.db' AS x",
        "PRAGMA user_version = 1",
        "VACUUM INTO 'x.db'",
    ]
    for sql in [
        *writes,
        "WITH a AS (SELECT 1) DELETE FROM runs",
        "SELECT load_extension('x')",
        "SELECT writefile('x', 'y')",
    ]:
        assert site.get(f"/{NAME}?sql={quote(sql)}")[0] == 400, sql
    assert read(database, "SELECT * FROM runs") == before
    assert sorted(path.name.removeprefix(database.name) for path in database.parent.iterdir()) in (
        [""],
        ["", "-shm", "-wal"],
    )
    for path in (f"/{NAME}.db", "/-/sqlite-utils", "/_memory"):
        assert site.get(path)[0] in (403, 404), path
    for title in EXAMPLES:
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower())
        assert json.loads(site.get(f"/{NAME}/{slug}.json?_shape=array")[1]) is not None
    assert "duration in seconds" in site.get(f"/{NAME}/runs")[1]


@thorough
def test_only_this_machine_is_answered(site: Site) -> None:
    for host in (
        "evil.example",
        f"evil.example:{site.port}",
        "",
        f"127.0.0.1.evil.example:{site.port}",
    ):
        assert site.get(f"/{NAME}/runs.json", Host=host)[0] == 421, host
    assert site.get("/", Host=f"localhost:{site.port}")[0] == 200
    listening = (
        Path("/proc/net/tcp").read_text().split() + Path("/proc/net/tcp6").read_text().split()
    )
    places = {
        word.split(":")[0]
        for word in listening
        if word.endswith(f":{site.port:04X}") and set(word.split(":")[0]) != {"0"}
    }
    assert places == {"0100007F"}


@thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 75)])
def test_signals_end_it(number: int, code: int, site: Site) -> None:
    assert site.get("/")[0] == 200
    ended, told = site.end(number)
    assert ended == code, told
    assert "Traceback" not in told


@thorough
def test_other_pages_are_not_answered(site: Site) -> None:
    for name, value in (
        ("Sec-Fetch-Site", "cross-site"),
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://[::1"),
    ):
        assert site.get(f"/{NAME}/runs.json", **{name: value})[0] == 403, value
    for name, value in (
        ("Sec-Fetch-Site", "same-origin"),
        ("Sec-Fetch-Site", "none"),
        ("Origin", f"http://localhost:{site.port}"),
    ):
        assert site.get(f"/{NAME}/runs.json", **{name: value})[0] == 200, value


@thorough
def test_a_statement_makes_no_value_that_fills_the_memory(site: Site) -> None:
    for sql in (
        "select zeroblob(900000000)",
        "select length(randomblob(900000000))",
        "select hex(zeroblob(3000000))",
    ):
        status, text = site.get(f"/{NAME}.json?sql={quote(sql)}")
        assert status == 400
        assert "too big" in text
    assert site.get(f"/{NAME}.json?sql={quote('select length(zeroblob(1000000))')}")[0] == 200


@thorough
def test_a_second_signal_ends_it_at_once(site: Site) -> None:
    endless = quote(
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT COUNT(*) FROM t"
    )
    asked = [http.client.HTTPConnection("127.0.0.1", site.port, timeout=200) for _ in range(9)]
    for connection in asked:
        connection.request("GET", f"/{NAME}.json?sql={endless}")
    time.sleep(2)
    site.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    ended, told = site.end(signal.SIGINT)
    assert ended == 130, told
    assert "Traceback" not in told


@thorough
def test_meanings_of_columns_leave_room_for_rows(site: Site) -> None:
    (style,) = described("results.db")["extra_css_urls"]
    page = site.get(f"/{NAME}/runs")[1]
    assert f'href="{style}"' in page
    assert page.index("column-descriptions") < page.index("<tbody>")


@thorough
def test_a_browser_opens_it(site: Site) -> None:
    with browser() as chromium:
        watched = opened(chromium, f"{site.url.rpartition('/')[0]}/runs?_facet=method")
        page: Any = watched.page
        assert page.title().startswith(f"{NAME}: runs: 7 rows")
        assert "one row per run" in page.locator("body").inner_text()
        assert "training method" in page.locator("dl.column-descriptions").inner_text()
        page.locator("th.col-final_accuracy a").first.click()
        page.wait_for_url("**_sort*")
        own = [
            text for text in page.locator("td.col-final_accuracy").all_inner_texts() if text.strip()
        ]
        assert own == sorted(own, key=float)
        page.locator(".facet-results a", has_text="sgd").first.click()
        page.wait_for_url("**method=sgd*")
        assert set(page.locator("td.col-method").all_inner_texts()) == {"sgd"}
        page.goto(site.url.rpartition("/")[0])
        page.get_by_role("link", name="Cost and number of the rounds of each MLMC level").click()
        page.locator("td.col-computations").first.wait_for()
        assert watched.problems == []
        assert {urlsplit(url).netloc for url in watched.requests} == {f"127.0.0.1:{site.port}"}
