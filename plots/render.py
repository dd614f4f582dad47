#!/usr/bin/env python3
"""Render the pages of this folder; queries of numbers.sql and claims.sql compute every number and
verdict in them.

plots/render.py [DATABASE] writes README.md, readings.md, claims.md and figures/*.md for a database,
by default results.db.example, from the templates of the same names in templates/.

A template may contain:

- ``{{ query.column:format }}``, a number, and ``{{ table query }}``, a table;
- ``{{ agreement FIGURE }}``, the verdict of a figure, and ``{{ claims FIGURE ... }}``, the list of
  its claims;
- ``{{ claims KIND }}``, a table of all claims of a kind, and ``{{ counts KIND }}``, their numbers;
  the kinds are ``sentences`` (with the paper's words), ``paraphrases`` (in ours) and ``settings``;
- ``{{ readings }}``, verdicts by reading of the paper, ``{{ verdicts READING }}``, their numbers in
  words, and ``{{ verdicts all }}``, the numbers if a fact agrees only if it agrees under each
  reading;
- ``{{ disagreements }}``, the sentences that do not agree.

A query sees the tables and views of the database, and ``counted``, the table ``runs`` in which a
run that diverged has the numbers that it counts as (``analysis.diverged``). It also sees
``csv_NAME`` for each NAME.csv of this folder (``-`` becomes ``_``, and folders are left out), and
``pairs``, the comparisons that numbers.sql names, as made by ``dynabro compare``. The query of a
claim returns a verdict and what was found. A query with ``:reading`` runs once for each row of the
table ``judged`` with its figure; the claim then has the verdict of the reading ``MAIN``. The same
query judges the figure on digits (``ON_DIGITS``).
"""

from __future__ import annotations

import argparse
import math
import re
import sqlite3
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import kendalltau, norm, t, ttest_1samp

from dynabro_cli.answers.analysis.diverged import counted_as, share
from dynabro_cli.answers.analysis.pairs import compare, side
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.experiment.grid.plan import as_stored, plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep, shipped
from dynabro_cli.runs.store.open.engine import open_read_only

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"
MAIN = "message"
"""The reading of the paper in which its figures are drawn."""
ON_DIGITS = {"mnist-sf-cwtm": "digits-periodic", "mnist-alie-gm": "digits-alie-gm"}
"""Figures by the ones that they repeat."""
PARTS = ("-curves", "-dmax048")
"""Ends of the names of figures that have the runs of the figure without the end."""
WIDTH = 120
BLOCK = re.compile(r"^-- (setup|query|claim|compare):[ ]*(.*)$", re.MULTILINE)
PLACE = re.compile(r"\{\{\s*(.+?)\s*\}\}", re.DOTALL)
QUOTATION = re.compile("\u201c([^\u201d]*)\u201d")
VERDICTS = ("agrees", "under some readings", "undecided", "no", "not run")
SINGULAR = ("agrees", "agrees under some readings", "is undecided", "does not agree", "was not run")
PLURAL = ("agree", "agree under some readings", "are undecided", "do not agree", "were not run")


class Claim(NamedTuple):
    """Sentences of the paper on one fact, with their verdict and what was found.

    ``text`` has the paper's words in quotation marks; without any, it is a paraphrase. ``readings``
    has verdict and finding by reading, if the fact was judged under several; ``setting`` is True if
    the claim only checks that the runs have the paper's settings.
    """

    name: str
    figures: tuple[str, ...]
    place: str
    text: str
    verdict: str
    found: str
    setting: bool = False
    readings: Mapping[str, tuple[str, str]] = MappingProxyType({})

    @property
    def kind(self) -> str:
        """Return the table that the claim belongs to."""
        return (
            "settings"
            if self.setting
            else "sentences"
            if QUOTATION.search(self.text)
            else "paraphrases"
        )

    @property
    def elsewhere(self) -> bool:
        """True if it was judged on another data set or setting than the paper's."""
        return "here:" in self.place


def blocks(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield kind, heading and SQL of every block of a file."""
    _, *parts = BLOCK.split(path.read_text(encoding="utf-8"))
    for kind, heading, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        yield kind, heading.strip(), body.strip()


def over_rows(function: Callable[..., float | str | None]) -> type:
    """Return an SQL aggregate: ``function`` of its columns, without rows that have a NULL; NULL if
    there are no rows.
    """

    class Aggregate:
        def __init__(self) -> None:
            self.rows: list[tuple[float, ...]] = []

        def step(self, *row: float | None) -> None:
            values = tuple(value for value in row if value is not None)
            if len(values) == len(row):
                self.rows.append(values)

        def finalize(self) -> float | str | None:
            return function(*zip(*self.rows, strict=True)) if self.rows else None

    return Aggregate


def trend(k: Sequence[float], x: Sequence[float]) -> float:
    """Return the one-sided p of Kendall's tau-b that x grows with k, over all runs; 1 if tau is
    NaN.
    """
    p = float(kendalltau(k, x, alternative="greater").pvalue)
    return 1.0 if math.isnan(p) else p


def paired_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of the t-test that the mean is 0; None for fewer than two values."""
    return float(ttest_1samp(differences, 0).pvalue) if len(differences) > 1 else None


def half_width(x: Sequence[float]) -> float | None:
    """Return half of Student's 95% interval of the mean; None for fewer than two values."""
    return (
        float(t.ppf(0.975, len(x) - 1) * np.std(x, ddof=1) / math.sqrt(len(x)))
        if len(x) > 1
        else None
    )


def shown(mean: float | None, diverged: float | None, n: float | None) -> str:
    """Return a mean as a cell of a table, with the number of diverged runs; ``-`` without runs."""
    words = "-" if mean is None else f"{mean:.3f}"
    lost = share(diverged or 0, n or 0)
    return f"{words} ({lost})" if lost else words


def cell(x: Sequence[float], diverged: Sequence[float]) -> str:
    """Return ``shown`` of the runs of a cell."""
    return shown(sum(x) / len(x), sum(diverged), len(x))


def connected(database: Path) -> sqlite3.Connection:
    """Return a connection that sees the database, the CSV files of this folder, and the functions
    of the queries.
    """
    connection = sqlite3.connect(":memory:", uri=True)
    connection.row_factory = sqlite3.Row
    connection.execute("ATTACH ? AS results", (f"file:{database.resolve()}?mode=ro&immutable=1",))
    for path in sorted(HERE.rglob("*.csv")):
        name = "_".join(
            path.relative_to(HERE).with_suffix("").parts[-2:]
            if "explained" in path.parts
            else [path.stem]
        )
        table = pd.read_csv(path).rename(
            columns=lambda column: column.removesuffix(" (planned, not run)")
        )
        table.to_sql(
            "csv_" + re.sub(r"\W", "_", name), connection, index=False, if_exists="replace"
        )
    connection.create_function("counted_as", 4, counted_as)
    connection.create_function("shown", 3, shown)
    names = [row[1] for row in connection.execute("PRAGMA results.table_info(runs)")]
    columns = ", ".join(
        f"iif(status = 'diverged', counted_as('{name}', task, model, code_digests), {name}) "
        f"AS {name}"
        if name.startswith("final_")
        else name
        for name in names
    )
    connection.execute(f"CREATE TABLE counted AS SELECT {columns} FROM results.runs")
    connection.execute("CREATE INDEX by_key ON counted (run_key)")
    connection.create_function(
        "k",
        1,
        lambda text: math.inf if text == "static" else float(text.partition("K=")[2] or "nan"),
    )
    connection.create_function("planned", 1, _planned)
    keys = {row[0] for row in connection.execute("SELECT run_key FROM counted WHERE wall_seconds")}

    def missing(name: str, settings: str) -> int:
        planned = plan(load_sweep(name, settings.split()))
        return len({run.key for run in as_stored(planned, keys.__contains__).runs} - keys)

    connection.create_function("missing", 2, missing)
    connection.create_function("normal_quantile", 1, lambda p: float(norm.ppf(p)))
    connection.create_function("ln_", 1, math.log)
    for name, count, function in (
        ("trend", 2, trend),
        ("paired_p", 1, paired_p),
        ("half_width", 1, half_width),
        ("cell", 2, cell),
    ):
        connection.create_aggregate(name, count, over_rows(function))
    return connection


def _planned(name: str) -> int | None:
    """Return the number of runs of a sweep; None if it does not come with the program any more."""
    return len(plan(load_sweep(name)).runs) if name in shipped() else None


def add_pairs(connection: sqlite3.Connection, database: Path) -> None:
    """Make the table ``pairs`` of all comparisons that numbers.sql names, with Holm's correction
    over the cells of each.
    """
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
            numbers = (
                cell.a,
                cell.b,
                test.mean,
                *test.student,
                test.p_t,
                test.p_wilcoxon,
                cell.holm_t,
            )
            known = [None if math.isnan(number) else number for number in numbers]
            rows.append((name, str(cell.labels.get("switching", "")), test.n, *known, cell.better))
    engine.dispose()
    connection.execute(
        "CREATE TABLE pairs (name, switching, n, a, b, difference, low, high, p_t, p_wilcoxon, "
        "holm_t, better)"
    )
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
        self.claims = [
            claim
            for kind, heading, sql in blocks(HERE / "claims.sql")
            if kind == "claim"
            for claim in self._judge(heading, sql)
        ]
        self._connection.close()

    def render(self, template: str) -> str:
        """Return the template with all its places filled and its paragraphs wrapped."""
        filled = PLACE.sub(lambda place: self._place(" ".join(place[1].split())), template)
        return (
            "\n\n".join(_wrapped(part) for part in re.split(r"\n\n(?!  )", filled)).rstrip("\n")
            + "\n"
        )

    @property
    def unused(self) -> set[str]:
        """Queries that the template does not use."""
        return set(self._rows) - self.used

    def _all(self, name: str, sql: str, **values: str) -> list[sqlite3.Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise SystemExit(f"{name}: {error}") from error

    def _judge(self, heading: str, sql: str) -> Iterator[Claim]:
        name, figures, place, text, *setting = (part.strip() for part in heading.split("|"))
        claim = Claim(
            name,
            tuple(figures.split()),
            place,
            text,
            "not run",
            "no runs in this reading yet",
            bool(setting),
        )
        if ":reading" not in sql:
            verdict, found = self._verdict(name, sql)
            yield claim._replace(verdict=verdict, found=found)
            return
        runs = min((claim.figures[0].removesuffix(part) for part in PARTS), key=len)
        yield self._under_readings(claim, runs, sql)
        if digits := ON_DIGITS.get(runs):
            there = tuple(figure.replace(runs, digits) for figure in claim.figures)
            again = claim._replace(
                name=f"{name}-digits", figures=there, place=f"{place} (here: digits)"
            )
            yield self._under_readings(again, digits, sql)

    def _verdict(self, name: str, sql: str, **values: str) -> tuple[str, str]:
        """Return the verdict of a query and what was found; 'not run' if the query returns no
        row.
        """
        rows = self._all(name, sql, **values)
        verdict, found = rows[0] if rows else ("not run", None)
        if verdict not in VERDICTS:
            raise SystemExit(f"{name}: the verdict {verdict!r} is not one of {', '.join(VERDICTS)}")
        return verdict, found or "no runs yet"

    def _under_readings(self, claim: Claim, figure: str, sql: str) -> Claim:
        """Judge a claim with the runs of a figure, under each reading that has them."""
        readings: dict[str, tuple[str, str]] = {}
        for (reading,) in self._all(
            claim.name, "SELECT reading FROM judged WHERE figure = :figure", figure=figure
        ):
            readings[reading] = self._verdict(claim.name, sql, reading=reading, figure=figure)
        verdict, found = readings.get(MAIN, (claim.verdict, claim.found))
        return claim._replace(verdict=verdict, found=found, readings=readings)

    def _place(self, text: str) -> str:
        word, _, rest = text.partition(" ")
        if word == "claims" and rest in ("sentences", "paraphrases", "settings"):
            return self._all_claims(self._of(rest))
        if word == "claims":
            return "\n".join(_line(claim) for claim in self._results(*rest.split()))
        if word == "counts":
            counts = [
                (verdict, sum(claim.verdict == verdict for claim in self._of(rest)))
                for verdict in VERDICTS
            ]
            return ", ".join(f"{verdict} {count}" for verdict, count in counts if count)
        if word == "readings":
            return self._by_reading()
        if word == "disagreements":
            wanted = ("no", "under some readings", "undecided")
            return "\n".join(
                _line(claim)
                for claim in self._of("sentences")
                if claim.verdict in wanted and not claim.elsewhere
            )
        if word == "verdicts":
            return self._verdicts(rest)
        if word == "agreement":
            table = [
                claim
                for claim in self.claims
                if rest in claim.figures and claim.place.startswith("Table")
            ]
            return agreement([claim.verdict for claim in table or self._results(rest)])
        if word == "table":
            self.used.add(rest)
            rows_of = self._rows[rest]
            if not rows_of:
                return "(no runs yet)"
            return _table(
                rows_of[0].keys(),
                [["" if cell is None else str(cell) for cell in row] for row in rows_of],
            )
        path, _, form = text.partition(":")
        name, _, column = path.partition(".")
        self.used.add(name)
        (row,) = self._rows[name]
        value = row[column] if column else row[0]
        if value is None:
            raise SystemExit(f"{text}: the query gives NULL")
        return format(value, form)

    def _of(self, kind: str) -> list[Claim]:
        return [claim for claim in self.claims if claim.kind == kind]

    def _results(self, *figures: str) -> list[Claim]:
        return [
            claim
            for claim in self.claims
            if not claim.setting and set(claim.figures) & set(figures)
        ]

    def _verdicts(self, reading: str) -> str:
        """Return the numbers of verdicts on Figures 1 and 5 to 7 under a reading, or under all of
        them together.
        """
        facts = [claim.readings for claim in self.claims if claim.readings and not claim.elsewhere]
        found = [fact[reading][0] for fact in facts if reading in fact]
        if reading == "all":
            found = [
                overall([verdict for verdict, _ in fact.values() if verdict != "not run"])
                for fact in facts
            ]
        counts = [found.count(verdict) for verdict in VERDICTS]
        words = zip(counts, SINGULAR, PLURAL, strict=True)
        numbers = [
            f"{count} {singular if count == 1 else plural}"
            for count, singular, plural in words
            if count
        ]
        return (
            f"Of {len(found)} facts on Figures 1 and 5 to 7, {', '.join(numbers)}"
            if found
            else "It was not run"
        )

    def _all_claims(self, claims: list[Claim]) -> str:
        """Return a table with a row for each claim, or for each of its readings."""
        rows = []
        for claim in claims:
            head = (f"`{claim.name}`", claim.text, claim.place)
            for reading, (verdict, found) in (
                claim.readings or {"": (claim.verdict, claim.found)}
            ).items():
                rows.append((*head, reading, verdict, found))
                head = ("", "", "")  # once for all readings
        return _table(("claim", "the paper", "place", "reading", "verdict", "found"), rows)

    def _by_reading(self) -> str:
        """Return a table of the claims that were judged under several readings, with a verdict for
        each reading.
        """
        judged = [claim for claim in self.claims if claim.readings]
        names = list(dict.fromkeys(name for claim in judged for name in claim.readings))
        rows = [
            (f"`{claim.name}`", *(claim.readings.get(name, ("-",))[0] for name in names))
            for claim in judged
        ]
        return _table(["claim", *names], rows)


def _line(claim: Claim) -> str:
    own = "" if QUOTATION.search(claim.text) else "In our words: "
    found = claim.found[:1].upper() + claim.found[1:]
    return (
        f"- **{claim.verdict}** (`{claim.name}`). {own}{claim.text.replace('; ', ' and ')}. "
        f"{found}."
    )


def overall(verdicts: list[str]) -> str:
    """Return the verdict of a fact from its verdicts under all readings: the rule until commit
    bc9a925.
    """
    if len(set(verdicts)) == 1:
        return verdicts[0]
    if {"agrees", "under some readings"} & set(verdicts):
        return "under some readings"
    return "undecided" if "undecided" in verdicts else "no"


def agreement(verdicts: list[str]) -> str:
    """Return the verdict of a figure from the verdicts of its claims."""
    run = [verdict for verdict in verdicts if verdict != "not run"]
    if not run:
        return "not run"
    if all(verdict == "undecided" for verdict in run):
        return "undecided"
    if all(verdict == "agrees" for verdict in run):
        return "yes"
    return "no" if all(verdict == "no" for verdict in run) else "partly"


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
            " ".join(item.split()),
            WIDTH,
            subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )


def pages() -> dict[Path, str]:
    """Return the templates by the paths of their pages, relative to this folder."""
    return {
        path.relative_to(TEMPLATES): path.read_text(encoding="utf-8")
        for path in sorted(TEMPLATES.rglob("*.md"))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the pages of this folder for a database.")
    parser.add_argument(
        "database", nargs="?", type=Path, default=HERE.parent / "results.db.example"
    )
    database = parser.parse_args().database
    if not database.is_file():
        parser.error(
            f"there is no database at {database}; give the path of one, such as results.db.example"
        )
    renderer = Renderer(database)
    texts = {path: renderer.render(template) for path, template in pages().items()}
    if renderer.unused:
        raise SystemExit(f"queries that nothing shows: {', '.join(sorted(renderer.unused))}")
    for path, text in texts.items():
        (HERE / path).parent.mkdir(exist_ok=True)
        (HERE / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
