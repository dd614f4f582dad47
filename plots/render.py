#!/usr/bin/env python3
"""Render README.md of this folder: every number and verdict in it is computed by a query of numbers.sql or claims.sql.

plots/render.py [DATABASE] prints the text for a database, by default results.db.example.

README.template.md has ``{{ query.column:format }}`` for a number, ``{{ table query }}`` for a table, ``{{ agreement FIGURE }}``
for the verdict of a figure's claims (``{{ agreement FIGURE softmax }}``: under this reading of the paper), ``{{ readings
}}`` for the claims that hold under each reading, and ``{{ claims }}`` for the list of all claims. A query sees the tables and
views of the database, ``csv_NAME`` for each NAME.csv of this folder (``-`` is written ``_``, and folders are left out), and
``pairs``, the comparisons that numbers.sql names, as ``dynabro compare`` makes them. A claim's query returns a verdict and what
was found; one with ``:reading`` is asked for each row of the table ``judged`` that has its figure, the readings of the paper.
"""

from __future__ import annotations

import argparse
import math
import re
import sqlite3
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import kendalltau, norm, ttest_1samp

from dynabro_cli.errors import NotFoundError
from dynabro_cli.experiment.resolve import REGISTRIES
from dynabro_cli.grid.plan import plan
from dynabro_cli.grid.sweep_lookup import load_sweep
from dynabro_cli.store.open.engine import open_read_only
from dynabro_cli.store.read.pairs import compare, side

HERE = Path(__file__).parent
WIDTH = 120
BLOCK = re.compile(r"^-- (setup|query|claim|compare):[ ]*(.*)$", re.MULTILINE)
PLACE = re.compile(r"\{\{\s*(.+?)\s*\}\}", re.DOTALL)
VERDICTS = ("agrees", "under some readings", "undecided", "no", "not run")


class Claim(NamedTuple):
    """A sentence of the paper, with its verdict and what was found; by reading, if it was judged under several."""

    name: str
    figure: str
    place: str
    quote: str
    verdict: str
    found: str
    readings: Mapping[str, str] = MappingProxyType({})


def blocks(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield kind, heading and SQL of every block of a file."""
    _, *parts = BLOCK.split(path.read_text(encoding="utf-8"))
    for kind, heading, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        yield kind, heading.strip(), body.strip()


class Trend:
    """The SQL aggregate ``trend(k, x)``: one-sided p of Kendall's tau-b that x grows with k, over all runs; 1 if tau is NaN."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def step(self, k: float, x: float) -> None:
        self.points.append((k, x))

    def finalize(self) -> float | None:
        if not self.points:
            return None
        found = kendalltau(*zip(*self.points, strict=True), alternative="greater")
        return 1.0 if math.isnan(found.pvalue) else float(found.pvalue)


class PairedP:
    """The SQL aggregate ``paired_p(difference)``: two-sided p of the t-test that the mean is 0; NULL for fewer than two."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, value: float) -> None:
        self.values.append(value)

    def finalize(self) -> float | None:
        return float(ttest_1samp(self.values, 0).pvalue) if len(self.values) > 1 else None


def connected(database: Path) -> sqlite3.Connection:
    """Return a connection that sees the database, the CSV files of this folder, and the functions of the queries."""
    connection = sqlite3.connect(":memory:", uri=True)
    connection.row_factory = sqlite3.Row
    connection.execute("ATTACH ? AS results", (f"file:{database.resolve()}?mode=ro&immutable=1",))
    for path in sorted(HERE.rglob("*.csv")):
        name = "_".join(path.relative_to(HERE).with_suffix("").parts[-2:] if "explained" in path.parts else [path.stem])
        pd.read_csv(path).to_sql("csv_" + re.sub(r"\W", "_", name), connection, index=False, if_exists="replace")
    connection.create_function("k", 1, lambda text: math.inf if text == "static" else float(text.partition("K=")[2] or "nan"))
    connection.create_function("planned", 1, lambda name: len(plan(load_sweep(name, ())).runs))
    connection.create_function("normal_quantile", 1, lambda p: float(norm.ppf(p)))
    connection.create_function("ln_", 1, math.log)
    connection.create_aggregate("trend", 2, Trend)  # type: ignore[arg-type]
    connection.create_aggregate("paired_p", 1, PairedP)  # type: ignore[arg-type]
    return connection


def add_pairs(connection: sqlite3.Connection, database: Path) -> None:
    """Make the table ``pairs`` of all comparisons that numbers.sql names; Holm's correction is over all cells of one."""
    rows: list[tuple[Any, ...]] = []
    engine = open_read_only(str(database))
    for kind, heading, where in blocks(HERE / "numbers.sql"):
        if kind != "compare":
            continue
        name, a, b = (part.strip() for part in heading.split("|"))
        try:
            cells = compare(engine, side(a, REGISTRIES), side(b, REGISTRIES), where).cells
        except NotFoundError:  # no runs yet
            continue
        for cell in cells:
            test = cell.test
            numbers = (cell.a, cell.b, test.mean, *test.student, test.p_t, test.p_wilcoxon, cell.holm_t)
            known = [None if math.isnan(number) else number for number in numbers]
            rows.append((name, str(cell.labels.get("switching", "")), test.n, *known, cell.better))
    engine.dispose()
    connection.execute("CREATE TABLE pairs (name, switching, n, a, b, difference, low, high, p_t, p_wilcoxon, holm_t, better)")
    connection.executemany(f"INSERT INTO pairs VALUES ({', '.join('?' * 12)})", rows)


class Renderer:
    """The queries' results for one database."""

    def __init__(self, database: Path) -> None:
        self._connection = connected(database)
        add_pairs(self._connection, database)
        self._rows: dict[str, list[sqlite3.Row]] = {}
        self.used: set[str] = set()
        for kind, name, sql in blocks(HERE / "numbers.sql"):
            if kind == "setup":
                self._connection.executescript(sql)
            elif kind == "query":
                self._rows[name] = self._all(name, sql)
        self.claims = [self._claim(heading, sql) for kind, heading, sql in blocks(HERE / "claims.sql") if kind == "claim"]
        self._connection.close()

    def render(self, template: str) -> str:
        """Return the text with all its places filled, and paragraphs wrapped."""
        filled = PLACE.sub(lambda place: self._place(" ".join(place[1].split())), template)
        return "\n\n".join(_wrapped(part) for part in re.split(r"\n\n(?!  )", filled)).rstrip("\n") + "\n"

    @property
    def unused(self) -> set[str]:
        """Queries that the template does not use."""
        return set(self._rows) - self.used

    def _all(self, name: str, sql: str, **values: str) -> list[sqlite3.Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise SystemExit(f"{name}: {error}") from error

    def _claim(self, heading: str, sql: str) -> Claim:
        name, figure, place, quote = (part.strip() for part in heading.split("|"))
        if ":reading" not in sql:
            ((verdict, found),) = self._all(name, sql)
            return Claim(name, figure, place, quote, _legal(name, verdict), found)
        rows = self._all(name, "SELECT reading, told FROM judged WHERE figure = :figure", figure=figure.removesuffix("-curves"))
        judged = [(reading, told, *self._all(name, sql, reading=reading)[0]) for reading, told in rows]
        readings = {reading: _legal(name, verdict) for reading, _, verdict, _ in judged}
        text = "; ".join(f"{told}: *{verdict}*, {found}" for _, told, verdict, found in judged)
        return Claim(name, figure, place, quote, overall([*readings.values()]), text, readings)

    def _place(self, text: str) -> str:
        if text == "claims":
            return "\n".join(
                f"- {one.place}: \u201c{one.quote}\u201d **{one.verdict}**: {one.found}. (`{one.name}`)" for one in self.claims
            )
        if text == "counts":
            counts = [(verdict, sum(one.verdict == verdict for one in self.claims)) for verdict in VERDICTS]
            return ", ".join(f"{count} {verdict}" for verdict, count in counts if count)
        if text == "readings":
            return self._readings()
        word, _, rest = text.partition(" ")
        if word == "agreement":
            name, _, reading = rest.partition(" ")
            own = [one for one in self.claims if one.figure == name]
            return agreement(
                [one.readings[reading] for one in own if one.readings] if reading else [one.verdict for one in own]
            )
        if word == "table":
            self.used.add(rest)
            rows_of = self._rows[rest]
            return _table(rows_of[0].keys(), [["" if cell is None else str(cell) for cell in row] for row in rows_of])
        path, _, form = text.partition(":")
        name, _, column = path.partition(".")
        self.used.add(name)
        (row,) = self._rows[name]
        value = row[column] if column else row[0]
        if value is None:
            raise SystemExit(f"{text}: the query gives NULL")
        return format(value, form)

    def _readings(self) -> str:
        """Return how many claims agree under each reading, and under all of them."""
        judged = [one.readings for one in self.claims if one.readings]
        names = dict.fromkeys(name for one in judged for name in one)
        agree = [f"{sum(one.get(name) == 'agrees' for one in judged)} agree with {name}" for name in names]
        every = sum(set(one.values()) == {"agrees"} for one in judged)
        return f"of {len(judged)}, {', '.join(agree)}, and {every} with all of these"


def overall(verdicts: list[str]) -> str:
    """Return the verdict of a claim that was judged under several readings of the paper."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    if {"agrees", "under some readings"} & set(verdicts):
        return "under some readings"
    return "undecided" if "undecided" in verdicts else "no"


def agreement(verdicts: list[str]) -> str:
    """Return the verdict of a figure: by all claims that it bears on."""
    run = [verdict for verdict in verdicts if verdict != "not run"]
    if all(verdict == "undecided" for verdict in run):
        return "not to be told"
    if all(verdict == "agrees" for verdict in run):
        return "yes"
    return "no" if all(verdict == "no" for verdict in run) else "partly"


def _legal(name: str, verdict: str) -> str:
    if verdict not in VERDICTS:
        raise SystemExit(f"{name}: the verdict {verdict!r} is not one of {', '.join(VERDICTS)}")
    return verdict


def _table(columns: Any, rows: Any) -> str:
    lines = [list(columns), ["---"] * len(list(columns)), *rows]
    cells = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _wrapped(part: str) -> str:
    """Wrap a paragraph or list; tables, headings, pictures and code stay."""
    if part.startswith(("|", "#", "```", "![", "  !")):
        return part
    items = re.split(r"\n(?=- )", part)
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()), WIDTH, subsequent_indent="  " if item.startswith("- ") else "", break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints README.md of this folder for a database.")
    parser.add_argument("database", nargs="?", type=Path, default=HERE.parent / "results.db.example")
    database = parser.parse_args().database
    if not database.is_file():
        parser.error(f"there is no database at {database}; give the path of one, such as results.db.example")
    renderer = Renderer(database)
    text = renderer.render((HERE / "README.template.md").read_text(encoding="utf-8"))
    if renderer.unused:
        raise SystemExit(f"queries that nothing shows: {', '.join(sorted(renderer.unused))}")
    print(text, end="")


if __name__ == "__main__":
    main()
