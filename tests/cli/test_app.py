"""The program as a whole: its help, its version, its errors, and how it is called from outside."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from dynabro_cli import __version__
from dynabro_cli.cli.app import application
from dynabro_cli.experiment.grid.plan import plan
from dynabro_cli.experiment.grid.sweep_lookup import load_sweep
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.executors import sweep
from dynabro_cli.runs.executors._api import Outcome
from tests.cli.conftest import SETTINGS, Dynabro
from tests.command_lines import commands, parse, program
from tests.runs.store.made import read

COMMANDS = sorted(commands())
PROGRAM = [sys.executable, "-m", "dynabro_cli"]


def example(dynabro: Dynabro, command: Sequence[str]) -> list[str]:
    """The words of the example that a command's help has, after the program's name."""
    return words_of_example(dynabro(*command, "--help").out)


def words_of_example(text: str) -> list[str]:
    """The words of the example of a help, after the program's name."""
    (line,) = [line.strip() for line in text.splitlines() if "Example: " in line]
    program, *words = shlex.split(line.removeprefix("Example: "))
    assert program == "dynabro"
    return words


def test_every_command_is_known() -> None:
    assert {command[0] for command in COMMANDS} >= {
        "run",
        "sweep",
        "list",
        "show",
        "runs",
        "query",
        "export",
        "db",
    }


@pytest.mark.parametrize("command", [("runs",), ("verify", "kappa"), ("db", "remove")])
def test_an_option_for_one_value_is_refused_if_it_is_given_twice(
    command: tuple[str, ...], dynabro: Dynabro
) -> None:
    found = program()
    for word in command:
        found = found.commands[word]
    single = [
        part
        for part in found.params
        if part.param_type_name == "option" and not part.multiple and not part.is_flag
    ]
    for option in single[:1] + single[-1:]:
        outcome = dynabro(*command, option.opts[0], "1", f"{option.opts[-1]}=2")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.problems[0].startswith(
            f"{option.opts[0]}: it is given twice, and takes one value. Try: one of them"
        )


def test_a_field_that_is_given_twice_to_run_comes_with_a_sweep_that_can_be_typed(
    dynabro: Dynabro, folder: Path
) -> None:
    given = [
        "--task",
        "quadratic",
        "--budget=40",
        "--pre",
        "nnm",
        "--pre=clipping:c=2",
        "--attack",
        "sf",
        "--attack=alie",
    ]
    (line,) = dynabro("run", *given, "--learning-rate", "0.1").problems
    text, _, command = line.partition(" | ")
    assert text.endswith("Try: one of them, or for all of them: echo 'name: attack'")
    Path("typed.yaml").write_text("name: attack")
    words = shlex.split(command)
    assert words[:3] == ["dynabro", "sweep", "-"]
    assert words[3::2] == ["--set"] * len(words[4::2])
    runs = plan(load_sweep("typed.yaml", words[4::2])).runs
    found = [
        (run.spec.task, run.spec.attack, run.spec.pre_aggregators, run.spec.learning_rate)
        for run in runs
    ]
    assert found == [("quadratic", attack, "nnm+clipping:c=2", 0.1) for attack in ("sf", "alie")]


def test_a_flag_may_be_given_twice(dynabro: Dynabro) -> None:
    assert dynabro("list", "models", "--json", "--json").code == 0


# --- help


OTHERWISE = (
    ("leaderboard",),
    ("demo",),
    ("report",),
    ("browse",),
    ("run",),
    ("evaluate",),
    ("logs",),
    ("db", "merge"),
    ("select",),
)
"""Commands whose example needs more than a database; it is tested elsewhere."""


SMALLER = {("verify", "tau"): {"500": "40"}}
"""Values in place of an example's, to shorten it."""


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command not in OTHERWISE], ids=" ".join
)
def test_the_example_works(command: tuple[str, ...], dynabro: Dynabro, results: Path) -> None:
    outcome = dynabro(
        *(SMALLER.get(command, {}).get(word, word) for word in example(dynabro, command))
    )
    assert outcome.code == 0, outcome.err
    assert outcome.out or outcome.err.endswith(".csv\n")


def test_the_example_of_run_is_a_run(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Run] = []

    def make_all(runs: list[Run], *_: object, **__: object) -> list[Outcome]:
        started.extend(runs)
        return [Outcome(run, "finished", None) for run in runs]

    monkeypatch.setattr(sweep, "make_all", make_all)
    assert dynabro(*example(dynabro, ["run"])).code == 0
    assert len(started) == 1


def test_the_example_of_run_runs(dynabro: Dynabro, folder: Path) -> None:
    small = ["--task", "digits", "--model", "logistic", "--budget", "10", "--quiet"]
    assert dynabro(*example(dynabro, ["run"]), *small).code == 0
    assert read(folder / "results.db", "SELECT status FROM runs") == [("finished",)]


def test_the_help_of_run_shows_meanings_and_defaults(dynabro: Dynabro) -> None:
    text = dynabro("run", "--help-all").out
    for name, info in fields().items():
        if name == "pre_aggregators":
            continue
        (line,) = [line for line in text.splitlines() if re.match(rf"│ +{info.option}[ ,]", line)]
        words = info.limits["help"]
        unset = "auto" if "auto:" in words else "the task's"
        assert f"[default: {unset if info.default is None else info.default}]" in line
        assert words[1:] in line, "in the case that it was written in: B is not b"


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_short_help_fits_two_screens(
    command: str, dynabro: Dynabro, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dynabro(command, "--help-all").out
    known = {option for each in program().commands[command].params for option in each.opts}
    assert {word for word in known if f" {word}" not in whole and f",{word}" not in whole} <= {
        "name"
    }
    monkeypatch.setenv("COLUMNS", "100")
    short = dynabro(command, "-h").out
    assert len(short.splitlines()) <= 2 * 45
    assert short == dynabro(command, "--help").out
    hidden = {word for word in known if f" {word}" not in short and f",{word}" not in short}
    assert "--max-retries" in hidden
    assert not hidden & {"--db", "--seed", "--dry-run", "--log", "--plugin", "--attack"}
    assert f" more options: dynabro {command} --help-all" in short


@pytest.mark.thorough
@pytest.mark.parametrize("command", [(), ("db",), ("verify",), *COMMANDS], ids=" ".join)
def test_help_shows_every_word_and_every_default_and_ends_in_an_example_that_parses(
    command: tuple[str, ...], dynabro: Dynabro
) -> None:
    known = program()
    for word in command:
        known = known.commands[word]
    word = "-h" if command[:1] == ("db",) else "--help"
    outcome = dynabro(*command, "--help-all" if command in (("run",), ("sweep",)) else word)
    assert (outcome.code, outcome.err) == (0, "")
    text = outcome.out
    assert [line for line in text.splitlines() if re.search(r"[ ,]--help(,--help-all)? +-h ", line)]
    assert " ".join(known.help.split("\n\n")[0].split()) in " ".join(text.split())
    for parameter in known.params:
        # a parameter without a line here is hidden
        (line,) = [line for line in text.splitlines() if (parameter.help or "--help") in line]
        if isinstance(parameter.default, str | int | float | Path) and not isinstance(
            parameter.default, bool
        ):
            assert f"[default: {parameter.default}]" in line, parameter.name
        assert "\\" not in line
    if command in COMMANDS:
        words = words_of_example(text)
        assert tuple(words[: len(command)]) == command
        parse(words)
        # the last thing said before the options, as what comes last is what is read
        before = re.split(r"\n╭─", text)[0].rstrip()
        assert before.splitlines()[-1].strip().startswith("Example: ")


def test_help_of_what_would_be_markup(dynabro: Dynabro) -> None:
    outcome = dynabro("verify", "kappa", "--help")
    # older versions of typer print a backslash before the bracket
    shown = outcome.out.replace("\\[", "[")
    assert "Such as cwmed or nnm+cwtm. [default: every rule]" in shown


@pytest.mark.parametrize("arguments", [("--help",), ("-h",)])
def test_help_lists_the_commands(arguments: tuple[str, ...], dynabro: Dynabro) -> None:
    outcome = dynabro(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"[│ ] {command[0]} ", outcome.out)


@pytest.mark.parametrize("arguments", [(), ("db",)])
def test_no_command_gets_the_help(arguments: tuple[str, ...], dynabro: Dynabro) -> None:
    outcome = dynabro(*arguments)
    assert outcome.code == 2
    text = outcome.out + outcome.err
    assert "Usage: " in text
    assert "dynabro: " not in text
    assert "Traceback" not in text


def test_a_text_in_place_of_a_number_is_refused(dynabro: Dynabro) -> None:
    outcome = dynabro("query", "SELECT 1", "--timeout", "soon")
    assert outcome.code == 2
    (line,) = outcome.problems
    assert "--timeout" in line


def test_version(dynabro: Dynabro) -> None:
    outcome = dynabro("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"dynabro {__version__}\n", "")


# --- wrong commands


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--nosuch",), "--nosuch"),
        (("rum",), "rum"),
        (("runs", "--nosuch"), "--nosuch"),
        (("runs", "--where"), "--where"),
        (("query",), "SQL"),
        (("diff", "1", "2", "more"), "more"),
        (("list", "--csv"), "--csv"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: tuple[str, ...], problem: str, dynabro: Dynabro
) -> None:
    outcome = dynabro(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.problems
    assert problem in line
    assert re.search(rf"[.?] Try: dynabro ({arguments[0]} )?--help$", line)


# --- settings


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        *((command, "DYNABRO_BUSY_SECONDS", "0") for command in ("runs", "db check", "sweep demo")),
        ("run --budget 20", "DYNABRO_LEASE_SECONDS", "1e300"),
    ],
)
def test_every_command_checks_the_environment_at_its_start(
    name: str,
    text: str,
    command: str,
    dynabro: Dynabro,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, text)
    outcome = dynabro(*command.split())
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.problems
    assert line.startswith(f"{name}={text!r}: ")
    assert list(folder.iterdir()) == []


def test_a_misspelt_setting_is_told_and_changes_nothing(
    dynabro: Dynabro, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNABRO_DBS", "elsewhere.db")
    outcome = dynabro("runs")
    assert outcome.code == 0
    (line,) = outcome.problems
    assert line.startswith(
        "warning: 'DYNABRO_DBS' in the environment is not a setting (did you mean "
        "'DYNABRO_DB'?); legal: "
    )


# --- from outside


def environment(**variables: str) -> dict[str, str]:
    """Ours, without what would turn the program elsewhere, or have it write its output at once."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in (*SETTINGS, "PYTHONUNBUFFERED")
    }
    return kept | {"OMP_NUM_THREADS": "1"} | variables


def call(
    *arguments: str, folder: Path, buffered: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Call the program from outside, its output ``buffered`` as it is for users, or written at once
    as in many containers.
    """
    variables = environment() if buffered else environment(PYTHONUNBUFFERED="1")
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=variables,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


@pytest.mark.thorough
def test_the_module_is_the_program(folder: Path) -> None:
    done = call("show", "runs/1", folder=folder, capture_output=True)
    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr.startswith("dynabro: there is no database results.db")


NUMBERS = {"torch", "torchvision", "scipy", "sklearn", "pandas", "matplotlib"}
"""What takes longest to import: only what computes, draws, or makes a database, may load it."""
DATABASE = {"sqlalchemy"}
LOADED: list[tuple[set[str], dict[str, int]]] = [
    (
        NUMBERS | DATABASE | {"yaml", "numpy"},
        {"--help": 0, "--version": 0, "run --help": 0, "sweep --help": 0},
    ),
    (
        NUMBERS | DATABASE | {"numpy"},
        {
            "list what": 2,
            "list": 0,
            "list aggregators --json": 0,
            "show aggregators/gm": 0,
            "show attacks/mixed --json": 0,
            "list sweeps": 0,
        },
    ),
    (
        NUMBERS | {"numpy"},
        {
            "runs": 0,
            "show runs/1": 0,
            "query SELECT(1)": 0,
            "export final --csv -": 0,
            "status": 0,
            "sweep demo --dry-run": 0,
            "db check": 0,
        },
    ),
    (
        NUMBERS,
        {
            "runs": 0,
            "show runs/1": 0,
            "query SELECT(1)": 0,
            "export final --csv -": 0,
            "logs 1": 66,
            "status": 0,
            "sweep demo --dry-run": 0,
            "sweep momentum-fails-gap --dry-run --json": 0,
            "select digits-rates": 66,
            "db check": 0,
            "db backup copy.db": 0,
        },
    ),
]
"""Packages that may not be loaded, and commands with the exit codes that they end with."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("absent", "commands"), LOADED, ids=["help", "components", "texts", "database"]
)
def test_nothing_heavy_is_loaded_in_vain(
    absent: set[str], commands: dict[str, int], results: Path
) -> None:
    program = f"""
import sys
import warnings
from dynabro_cli.cli.app import main
for command in {list(commands)!r}:
    sys.argv = ["dynabro", *command.split()]
    try:
        main()
    except SystemExit as end:
        print("LOADED", end.code or 0, *{{name.partition(".")[0] for name in sys.modules}})
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=results.parent,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("LOADED")]
    found = {
        command: (int(code), absent & set(loaded))
        for command, (code, *loaded) in zip(commands, told, strict=True)
    }
    assert found == {command: (code, set()) for command, code in commands.items()}
    assert {"typer", "dynabro_cli"} <= set(told[-1])


@pytest.mark.thorough
def test_unused_objects_are_searched_for_rarely_until_torch_is_loaded(folder: Path) -> None:
    program = """
import gc, sys
from dynabro_cli.cli.app import main
from dynabro_cli.core.lazy import deferred
usual, first = gc.get_threshold(), deferred("torch")
for _ in range(2):
    sys.argv = ["dynabro", "--version"]
    try:
        main()
    except SystemExit:
        assert gc.get_threshold() == (50_000, *usual[1:])
first.__version__
assert gc.get_threshold() == usual
"""
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("here", [False, True])
def test_torch_is_loaded_by_the_process_of_a_run_or_after_the_run_is_described(
    here: bool, folder: Path
) -> None:
    program = """
import sys
import warnings
class Watch:
    def __init__(self, real):
        self._real, self.seen = real, []
    def write(self, text):
        self.seen.append("torch" in sys.modules)
        return self._real.write(text)
    def __getattr__(self, name):
        return getattr(self._real, name)
sys.stderr = watch = Watch(sys.stderr)
sys.argv = "dynabro run --task quadratic --method sgd --attack none --budget 20 --jobs JOBS --db some.db".split()
from dynabro_cli.cli.app import main
try:
    main()
finally:
    print("SEEN", watch.seen[0], watch.seen[-1])
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", program.replace("JOBS", "0" if here else "1")],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"SEEN False {here}"
    first = done.stderr.splitlines()[0]
    (key,) = read(folder / "some.db", "SELECT run_key FROM runs")[0]
    said = "quadratic, sgd, cwtm, none, periodic:K=10, seed 0, budget=20"  # what is not the default
    assert first == f"{said}; to be stored in some.db with key {key[:10]}"


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "buffered"), [(1, True), (1, False), (200_000, True)])
def test_a_reader_that_leaves_is_no_error(count: int, buffered: bool, results: Path) -> None:
    # as in `dynabro query ... | head -1`: nobody reads; of much it is told while printing, of
    # little at the end
    rows = (
        f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {count}) "
        "SELECT x FROM c"
    )
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = call(
            "query",
            rows,
            "--csv",
            folder=results.parent,
            buffered=buffered,
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.thorough
def test_a_reader_that_leaves_does_not_hide_an_error(results: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    # the second has no absolute value
    rows = "SELECT 1 AS x UNION ALL SELECT abs(-9223372036854775807 - 1)"
    try:
        done = call(
            "query", rows, "--csv", folder=results.parent, stdout=theirs, stderr=subprocess.PIPE
        )
    finally:
        os.close(theirs)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dynabro: SQL: integer overflow")


@pytest.mark.thorough
def test_a_run_goes_on_when_nobody_reads_its_progress(folder: Path) -> None:
    # as in `dynabro run 2>&1 | head -1`: what takes hours is not to be lost to a line of progress
    ours, theirs = os.pipe()
    os.close(ours)
    command = ["run", "--task", "quadratic", "--method", "sgd", "--budget", "20"]
    try:
        done = call(*command, folder=folder, stdout=subprocess.PIPE, stderr=theirs)
    finally:
        os.close(theirs)
    assert read(folder / "results.db", "SELECT status, rounds FROM runs") == [("finished", 20)]
    assert done.returncode == 0
    assert "stored in results.db" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "buffered"),
    [
        (["runs"], True),
        (["query", "SELECT 1", "--json"], False),
        (["query", "SELECT * FROM rounds, runs", "--csv"], True),
    ],
)
def test_a_full_disk_is_told_in_a_line(arguments: list[str], buffered: bool, results: Path) -> None:
    with open("/dev/full", "w") as full:
        done = call(
            *arguments,
            folder=results.parent,
            buffered=buffered,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 74
    *_, line = done.stderr.splitlines()  # behind notes on what is listed, as output is buffered
    assert line.startswith("dynabro: ")
    assert "No space left on device" in line


def test_ctrl_c(folder: Path) -> None:
    def default() -> None:
        # a test run in the background may have it ignored, and passes that on
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command = [*PROGRAM, "run", "--model", "logistic", "--method", "sgd", "--budget", "100000000"]
    command += ["--eval-every", "1000", "--compile", "off"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith(
                "digits, sgd, cwtm, sf, periodic:K=10, seed 0, "
            )
            assert process.stderr.readline().startswith("0/100000000: accuracy ")  # it is at work
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert (
        err.splitlines()[-1]
        == "dynabro: interrupted; runs stored as interrupted: 1; the same command resumes from here"
    )
    assert "Traceback" not in err
    assert read(folder / "results.db", "SELECT status, final_accuracy FROM runs") == [
        ("interrupted", None)
    ]


def test_a_command_is_built_alone() -> None:
    """Other words, such as options and mistakes, get all commands, from which help and advice are
    made.
    """
    everything: Any = typer.main.get_command(application())
    for name in everything.commands:
        alone: Any = typer.main.get_command(application(name))
        assert list(alone.commands) == [name]
    for other in ("--help", "rnus"):
        whole: Any = typer.main.get_command(application(other))
        assert list(whole.commands) == list(everything.commands)
