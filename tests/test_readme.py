"""README.md and docs/ tell the truth: commands parse, SQL and Python run, and columns, settings and
exit codes are complete.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dynabro_cli import __version__, run
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core import errors
from dynabro_cli.core.machine.settings import SETTINGS
from dynabro_cli.experiment.spec import RunSpec, fields
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.read import queries
from dynabro_cli.runs.store.tables import STATUSES, metadata
from tests.command_lines import parse
from tests.real_runs import fill
from tests.runs.store.made import read
from tests.tables import each_row

ROOT = Path(__file__).parents[1]
DOCUMENTS = {
    path: path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
"""README and the pages of docs/."""
MOST_BYTES = 10_000
"""Largest size of README."""


def page(name: str) -> str:
    """A page of docs/."""
    return DOCUMENTS[ROOT / "docs" / f"{name}.md"]


def blocks(language: str, text: str) -> list[str]:
    """The contents of the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def command_lines() -> Iterator[str]:
    """Every call of dynabro in the ``sh`` blocks, by itself."""
    for block in blocks("sh", "\n".join(DOCUMENTS.values())):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            words.whitespace_split = True
            words.commenters = "#"
            call: list[str] = []
            for word in [*words, ";"]:
                if set(word) <= set("|&;<>"):
                    if call and call[0].rsplit("/", 1)[-1] == "dynabro":
                        yield shlex.join(call[1:])
                    call = []
                else:
                    call.append(word)


def tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Each markdown table with the paragraph before it; its rows without the header."""
    for found in re.finditer(r"((?:^(?!\|).*\n)*)((?:^\|.*\n)+)", text, re.MULTILINE):
        paragraph = found[1].strip().split("\n\n")[-1]
        rows = [
            [cell.strip() for cell in line.strip("|\n ").split("|")]
            for line in found[2].splitlines()
        ]
        yield paragraph, rows[2:]


def quoted(text: str) -> list[str]:
    """Texts between backticks."""
    return re.findall(r"`([^`]+)`", text)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme") / "results.db"
    fill(path)
    return path


# --- commands

COMMANDS = list(dict.fromkeys(command_lines()))


def test_there_are_commands() -> None:
    assert "demo" in COMMANDS
    assert len(COMMANDS) >= 40


@each_row("command", COMMANDS)
def test_a_command_parses(command: str) -> None:
    words = shlex.split(command)
    parameters = parse(words)
    if words[0] == "run" and "--plugin" not in words:  # tests/test_first_steps.py runs that one
        given = {name: value for name, value in parameters.items() if name in fields() and value}
        given |= {
            name: "+".join(value)
            for name, value in given.items()
            if isinstance(value, list | tuple)
        }
        from dynabro_cli.experiment.resolve import resolve

        resolve(RunSpec.from_text(given))
    if words[0] == "show" and not words[1].startswith("runs/") and not words[1].isdecimal():
        from dynabro_cli.components.registries import REGISTRIES

        kind, _, name = words[1].rpartition("/")
        assert any(
            name in registry.entries() for own, registry in REGISTRIES.items() if kind in ("", own)
        )


*_, (_, COMPARED) = tables(page("comparison"))


@each_row(
    "row",
    [row for row in COMPARED if row[1] == "y"],
    ids=[row[0] for row in COMPARED if row[1] == "y"],
)
def test_what_is_said_to_be_there_has_a_command(row: list[str]) -> None:
    commands = [
        text.removeprefix("dynabro ") for text in quoted(row[-1]) if text.startswith("dynabro ")
    ]
    assert commands or "](" in row[-1]
    for command in commands:
        parse(shlex.split(command))


def test_what_is_not_there_is_said_too() -> None:
    assert {row[1] for row in COMPARED} == {"y", "-"}
    assert all(set(row[1:6]) <= {"y", "-", "plugin", ""} for row in COMPARED)


# --- SQL

STATEMENTS = [
    statement
    for block in blocks("sql", page("database"))
    for statement in block.split(";")
    if statement.strip()
]


def test_there_is_sql() -> None:
    assert len(STATEMENTS) >= 5


EXAMPLE = ROOT / "results.db.example"
MEASURED = {
    *("mean", "std", "n", "test_accuracy", "rounds", "error", "computations", "norm"),
}
"""Columns of the statements that do not tell rows apart."""


@pytest.mark.parametrize(
    "sql", STATEMENTS, ids=[statement.strip().splitlines()[0] for statement in STATEMENTS]
)
def test_sql_gives_rows_that_a_column_tells_apart(sql: str, with_workers: Path) -> None:
    database = with_workers if "worker_labels" in sql else EXAMPLE
    engine = open_read_only(str(database))
    frame = queries.query(engine, sql).frame()
    assert len(frame)
    assert not frame.duplicated([name for name in frame if name not in MEASURED]).any()
    assert queries.thinned_note(engine, sql) is None


def test_figure_1_names_or_fixes_every_field() -> None:
    """So that rows with equal fields are one cell, in any database."""
    (sql,) = (statement for statement in STATEMENTS if "Figure 1" in statement)
    named = set(re.findall(r"\w+", sql)) | {"aggregator", "pre_aggregators", "seed"}  # rule
    assert set(fields()) <= named


def test_statements_on_rounds_count_whole_runs_only() -> None:
    """The levels of the example database, counted by hand with the runs that have all rounds."""
    engine = open_read_only(str(EXAMPLE))
    whole = "run_id IN (SELECT id FROM runs WHERE rounds_every = 1)"
    (sql,) = (statement for statement in STATEMENTS if "each MLMC level" in statement)
    counted = queries.query(engine, sql).frame()
    assert (
        counted["n"].sum()
        == queries.query(engine, f"SELECT COUNT(level) FROM rounds WHERE {whole}").frame().iat[0, 0]
    )
    assert (counted["computations"] >= counted["n"]).all()


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT COUNT(*) FROM rounds", True),
        ("select count(*) from runs r join main.rounds on r.id = run_id", True),
        ('SELECT 1 FROM runs AS r JOIN "rounds" AS o ON o.run_id = r.id', True),
        ("SELECT COUNT(*) FROM (SELECT * FROM\n rounds)", True),
        ("SELECT SUM(count) FROM worker_labels", True),
        ("SELECT 1 FROM rounds JOIN runs ON id = run_id WHERE rounds_every = 1", False),
        ("SELECT id, rounds FROM runs", False),
        ("SELECT id, rounds FROM runs GROUP BY id, rounds", False),
        ("SELECT * FROM byzantine_histogram", False),
    ],
)
def test_a_statement_on_thinned_rounds_gets_a_note(sql: str, reads: bool, database: Path) -> None:
    note = queries.thinned_note(open_read_only(str(EXAMPLE)), sql)
    assert (note is not None) == reads
    assert note is None or re.match(r"\d+ of \d+ runs are thinned: ", note)
    assert queries.thinned_note(open_read_only(str(database)), sql) is None  # nothing is thinned


@pytest.fixture(scope="module")
def with_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose workers differ, and whose identities no seed determines."""
    path = tmp_path_factory.mktemp("workers") / "results.db"
    run(
        RunSpec(
            task="digits",
            model="logistic",
            method="momentum",
            data="sorted",
            switching="adaptive",
            workers=5,
            byzantine=2,
            budget=20,
        ),
        db=str(path),
    )
    return path


def test_workers_of_two_tables_are_joined_by_their_numbers(with_workers: Path) -> None:
    """``identities`` counts from 1, ``worker_labels`` from 0."""
    (sql,) = (statement for statement in STATEMENTS if "worker_labels" in statement)
    joined = {
        (tick, worker): samples
        for _, tick, worker, samples in queries.query(open_read_only(str(with_workers)), sql).rows
    }
    samples = dict(read(with_workers, "SELECT worker, SUM(count) FROM worker_labels GROUP BY 1"))
    expected = {
        (tick, worker): samples[worker - 1]
        for tick, text in read(with_workers, "SELECT tick, byzantine FROM identities")
        for worker in json.loads(text)
    }
    assert joined == expected
    assert {worker for _, worker in joined} <= set(range(1, 6))


# --- Python


def with_blocks(language: str) -> pytest.MarkDecorator:
    """Parametrize by the pages that have blocks of a language."""
    pages = [path for path in DOCUMENTS if blocks(language, DOCUMENTS[path])]
    return pytest.mark.parametrize("path", pages, ids=lambda path: path.name)


def made_of(command: list[str], folder: Path) -> str:
    """Run a command in a folder, with this environment's programs; return its output."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run_here = os.environ | {"PATH": programs, "OMP_NUM_THREADS": "1", "DYNABRO_GIT_DIFF": "off"}
    run_here |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run(
        command, cwd=folder, env=run_here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
@with_blocks("python")
def test_the_python_of_a_page_runs_in_order(path: Path, tmp_path: Path) -> None:
    """In one process, in an empty folder."""
    text = "\n".join(blocks("python", DOCUMENTS[path]))
    if "from flwr." in text:  # it needs an environment of its own, as the page says
        pytest.importorskip("flwr")
    (tmp_path / "page.py").write_text(text)
    made_of([sys.executable, "page.py"], tmp_path)


# --- shell

ELSEWHERE = (
    r"pip install|\bvenv\b|source |createdb|postgresql|docker|--executor ray|tensorboard --logdir"
    r"|mlflow ui|wandb sync|--watch|tail -f|dynabro browse|show 1 --diff"
)
"""Commands that need a network, a server, a checkout, another program, or a person."""
LONG = (
    r"mnist|pytest$|sweep (digits-|leaderboard-)|dynabro search (?!.*--dry-run)|verify rate"
    r"|plot (all|digits-|rate|history)|select |chosen.yaml|leaderboard|FROM trials"
)
"""Commands that take long, or need the results of a command that does."""
LOGISTIC = "dynabro run --model logistic --method sgd --budget"
SWEEPS = """
for name in mine my-sweep other-sweep; do
  echo "name: $name"
  echo "base: {task: digits, model: logistic, method: sgd, budget: 40, eval_every: 20}"
  echo "grid: {aggregator: [cwtm, gm], attack: [sf, alie], switching: [static, 'periodic:K=5']}"
  echo "seeds: 0..1"
done | split -l 4 - given-
for file in given-*; do dynabro sweep $file; done
"""
GIVEN = {
    "../README": f"{LOGISTIC} 20",  # for the demo
    "database": f"{LOGISTIC} 20; {LOGISTIC} 30 --db from-another-machine.db",
    "export": SWEEPS + "sed -n 1,4p given-aa > mine.yaml; export WANDB_MODE=offline",
    "extending": SWEEPS + "cat given-* | sed -n 1,4p > mine.yaml",
    "first-comparison": "",
    "figures": SWEEPS
    + """
ln -s "$EXAMPLE" results.db.example
dynabro run --method sgd --model logistic --budget 40 --switching bernoulli:p=0.1,D=5,delta_max=0.4
dynabro run --method dynabro --model logistic --lr 0.05 --budget 40
dynabro run --method momentum --model logistic --lr 0.01 --budget 40
""",
    "leaderboard": "",
    "running": f"{LOGISTIC} 20; {LOGISTIC} 30",  # for the two runs on MNIST
    "searches": "",
    "sweeps": f"{LOGISTIC} 20 --db part-1.db",
    "theory": "",
}
"""Commands before a page's own, which make what the page supposes to be there."""


def shell_lines(text: str) -> Iterator[str]:
    """The commands of the ``sh`` blocks, each with its continuations and here-documents."""
    for block in blocks("sh", text):
        here = r"^.*<<'(?P<end>\w+)'\n[\s\S]*?\n(?P=end)$"
        for found in re.finditer(rf"{here}|^(?:.*\\\n)*.+$", block, re.MULTILINE):
            yield found[0]


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "given"), GIVEN.items())
def test_the_shell_of_a_page_runs_in_order(name: str, given: str, tmp_path: Path) -> None:
    """In an empty folder, after what the page supposes; other programs and long runs are left
    out.
    """
    lines = [
        line
        for line in shell_lines(DOCUMENTS[(ROOT / "docs" / f"{name}.md").resolve()])
        if not re.search(f"{ELSEWHERE}|{LONG}", line)
    ]
    script = "\n".join(["set -eo pipefail", f"EXAMPLE={EXAMPLE}", given, *lines])
    if lines:
        made_of(["bash", "-c", script], tmp_path)


def test_pictures_of_steps_are_small_and_made_by_commands() -> None:
    text = page("first-comparison")
    pictures = re.findall(r"\]\((first-comparison/(.*)\.png)\)", text)
    assert len(pictures) >= 4
    for file, name in pictures:
        assert f"--name {name}" in "\n".join(blocks("sh", text))
        assert (ROOT / "docs" / file).stat().st_size < 40_000


def test_the_picture_of_a_round_is_drawn_by_its_script() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "picture.py"))["picture"]()
    assert (ROOT / "docs" / "round.svg").read_text(encoding="utf-8") == drawn


def test_every_page_with_commands_is_run() -> None:
    pages = {path.stem for path in DOCUMENTS if blocks("sh", DOCUMENTS[path])}
    assert pages == {Path(name).stem for name in GIVEN}


def test_few_commands_are_left_out() -> None:
    left_out = {
        line
        for path in DOCUMENTS
        for line in shell_lines(DOCUMENTS[path])
        if re.search(f"{ELSEWHERE}|{LONG}", line)
    }
    every = {line for path in DOCUMENTS for line in shell_lines(DOCUMENTS[path])}
    assert len(every - left_out) >= 45, sorted(left_out)


# --- the database


@pytest.mark.parametrize("view", ["byzantine_histogram", "final_accuracy"])
def test_every_column_of_a_view_is_documented(view: str, database: Path) -> None:
    (section,) = re.findall(
        rf"^## {view}\n(.*?)(?=^## |\Z)", page("columns"), re.DOTALL | re.MULTILINE
    )
    columns = {name for (name,) in read(database, "SELECT name FROM pragma_table_info(?)", view)}
    assert columns
    assert columns <= set(quoted(section))


def test_every_view_is_documented(database: Path) -> None:
    views = {
        name for (name,) in read(database, "SELECT name FROM sqlite_master WHERE type = 'view'")
    }
    assert views <= set(quoted(page("database")))


def test_every_status_is_documented() -> None:
    (line,) = re.findall(
        r"^- `status`: .*(?:\n  .*)*", page("columns").partition("## evaluations")[0], re.M
    )
    assert set(STATUSES) <= set(quoted(line))


# --- exit codes


def error_classes(
    root: type[errors.DynabroError] = errors.DynabroError,
) -> Iterator[type[errors.DynabroError]]:
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def test_every_exit_code_is_documented() -> None:
    (_, rows), _ = tables(page("settings"))
    codes = [int(row[0].strip("`")) for row in rows]
    assert codes == sorted(codes)
    assert set(codes) == {0} | {kind.exit_code for kind in error_classes()}
    assert all(row[1] for row in rows)


# --- sweeps


def test_the_sweep_can_be_planned() -> None:
    from dynabro_cli.experiment.grid.plan import plan
    from dynabro_cli.experiment.grid.sweep_file import parse_sweep

    (text,) = blocks("yaml", page("sweeps"))
    planned = plan(parse_sweep(text, "sweeps.md"))
    assert (len(planned.runs), planned.duplicates, planned.excluded) == (80, 0, 10)


def test_every_key_of_a_sweep_is_documented() -> None:
    from dynabro_cli.experiment.grid.sweep_file import KEYS

    documented = [
        [key for row in rows for key in quoted(row[0])] for _, rows in tables(page("sweeps"))
    ]
    assert list(KEYS) in documented


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        words
        for words in COMMANDS
        if words.startswith("sweep ") and not any(own in words for own in (".yaml", "--plugin"))
    ],
)
def test_a_sweep_that_comes_with_the_program_can_be_planned(command: str) -> None:
    from dynabro_cli.experiment.grid.plan import plan
    from dynabro_cli.experiment.grid.sweep_lookup import load_sweep

    parameters = parse(shlex.split(command))
    assert plan(load_sweep(parameters["name"], parameters["settings"] or ())).runs


# --- the release


def test_the_version_is_the_same_everywhere() -> None:
    (heading,) = re.findall(
        r"^## \[([^]]+)\] - (\S+)$",
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )[:1]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert heading == (__version__, str(citation["date-released"]))
    assert citation["version"] == __version__


# --- settings


def test_every_setting_is_documented() -> None:
    _, (_, rows) = tables(page("settings"))
    told = {quoted(row[0])[0]: row[1:] for row in rows}
    tests = ("DYNABRO_FAILPOINT", "DYNABRO_TEST_POSTGRES")
    assert list(told) == [name for name in SETTINGS if name not in tests]
    for name, (_, legal, default) in told.items():
        assert legal == SETTINGS[name].legal
        assert SETTINGS[name].default is None or float(default) == SETTINGS[name].default


# --- the pages


@pytest.mark.parametrize("name", ["columns", "components"])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    generated = runpy.run_path(str(ROOT / "docs" / "generated.py"))
    assert page(name) == generated[name](), "type: python docs/generated.py"


def test_every_table_and_column_has_a_meaning() -> None:
    assert all(table.comment for table in metadata.tables.values())
    assert all(column.comment for table in metadata.tables.values() for column in table.columns)


def test_every_component_has_a_page() -> None:
    component = runpy.run_path(str(ROOT / "docs" / "generated.py"))["component"]
    for kind, registry in REGISTRIES.items():
        for name, entry in registry.entries().items():
            text = component(kind, entry)
            assert (ROOT / re.findall(r"`(dynabro_cli/.*)`", text)[-1]).is_file(), name
            assert all(f"| `{info.key}` |" in text for info in entry.infos), name


@each_row("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", DOCUMENTS[path]):
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {title.lower().replace(" ", "-") for title in titles}, anchor


def test_the_readme_counts_components() -> None:
    def number(kind: str) -> int:
        return len(set(REGISTRIES[kind].entries()) - {"none"})

    text = DOCUMENTS[ROOT / "README.md"]
    numbers = ", ".join(str(number(kind)) for kind in ("aggregators", "pre_aggregators", "attacks"))
    assert f"| aggregators, pre-aggregators, attacks | {numbers} |" in text
    assert f"| {number('switching')} switching strategies |" in text


def test_the_readme_is_short() -> None:
    assert len(DOCUMENTS[ROOT / "README.md"].encode()) <= MOST_BYTES


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w-]+\.md", (ROOT / "zensical.toml").read_text(encoding="utf-8")))
    assert {path.name for path in DOCUMENTS if path.parent.name == "docs"} <= named
