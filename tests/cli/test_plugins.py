"""Components of the user's: named by an option, the environment, a sweep or an installed
package.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.registration import plugins
from dynabro_cli.core.registration.digests import DIGEST
from dynabro_cli.runs.executors import worker
from tests.cli.conftest import Dynabro
from tests.command_lines import commands, program
from tests.own import forget, fresh, write_rule

QUICK = (
    "--task",
    "quadratic",
    "--method",
    "sgd",
    "--attack",
    "shift:lambda=1",
    "--budget",
    "20",
    "-q",
)
SWEEP = """
name: own
plugins: {plugins}
base: {{task: quadratic, method: sgd, attack: "shift:lambda=1", budget: 20}}
grid: {{aggregator: [cwmed, own]}}
"""


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with fresh():
        yield


@pytest.fixture
def rule(folder: Path) -> Path:
    return write_rule(folder)


def rows(sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect("results.db") as connection:
        return connection.execute(sql).fetchall()


# --- where plugins are named


def test_every_command_has_the_option() -> None:
    found = 0
    for words in commands():
        command = program()
        for word in words:
            command = command.commands[word]
        assert any("--plugin" in parameter.opts for parameter in command.params), words
        found += 1
    assert found >= 15


def test_the_option_loads_a_file(dynabro: Dynabro, rule: Path) -> None:
    assert "own:broken" not in dynabro("list", "aggregators").out
    assert "own:broken  " in dynabro("list", "aggregators", "--plugin", str(rule)).out


def test_a_file_of_the_current_folder_and_a_module_are_the_same_kind_of_thing(
    dynabro: Dynabro, rule: Path
) -> None:
    assert (
        "The mean of all messages."
        in dynabro("show", "aggregators/own", "--plugin", "own_rule").out
    )
    assert f"Defined in: {rule}" in dynabro("show", "aggregators/own").out


def test_the_environment_names_plugins(
    dynabro: Dynabro, rule: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_rule(rule.parent, "other.py", name="other")
    monkeypatch.setenv("DYNABRO_PLUGINS", f"{rule}:{other}")
    outcome = dynabro("list", "aggregators")
    assert ("own:broken" in outcome.out, "other:broken" in outcome.out, outcome.err) == (
        True,
        True,
        "",
    )


def test_a_file_that_is_named_twice_is_loaded_once(dynabro: Dynabro, rule: Path) -> None:
    assert dynabro("list", "--plugin", str(rule), "--plugin", "own_rule.py").code == 0


def installed(folder: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a package with an entry point be installed."""
    info = folder / "own_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dynabro.plugins]\nrules = {value}\n")
    monkeypatch.syspath_prepend(str(folder))
    plugins._installed_done = False


def test_an_installed_package_names_its_module(
    dynabro: Dynabro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    installed(site, "own_installed", monkeypatch)
    write_rule(site, "own_installed.py")
    assert dynabro("run", "--aggregator", "own", *QUICK).code == 0
    assert "own:broken" in dynabro("list", "aggregators").out
    ((digests,),) = rows("SELECT code_digests FROM runs")
    assert "aggregators/own" in json.loads(str(digests))


def test_an_installed_package_that_is_broken_is_named(
    dynabro: Dynabro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    installed(site, "own_broken", monkeypatch)
    (site / "own_broken.py").write_text("\nnothing\n")
    outcome = dynabro("list")
    where = f"{site}/own_broken.py, line 2: NameError: name 'nothing' is not defined"
    problem = (
        f"plugin of the installed package own-package: {where}. Try: pip uninstall own-package"
    )
    assert (outcome.code, outcome.problems) == (78, [problem])


@pytest.mark.thorough
def test_without_plugins_nothing_more_is_loaded() -> None:
    program = (
        "import sys; from dynabro_cli.cli.app import main; sys.argv = ['dynabro', 'list']; main()"
    )
    slow = "{'torch', 'pandas', 'sqlalchemy'}"
    tail = (
        f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & {slow}), "
        "file=sys.stderr)"
    )
    code = f"import atexit, sys; atexit.register(lambda: {tail})\n{program}"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stderr
        == "[]\n"
    )


# --- what becomes of them


def test_a_run_stores_the_digest_and_the_name(dynabro: Dynabro, rule: Path) -> None:
    assert dynabro("run", "--plugin", "own_rule.py", "--aggregator", "own", *QUICK).code == 0
    ((text, versions),) = rows(
        "SELECT code_digests, versions FROM runs JOIN environments ON environments.id = "
        "environment_id"
    )
    digests = json.loads(str(text))
    assert DIGEST.fullmatch(digests["aggregators/own"])
    assert json.loads(str(versions))["plugins"] == [str(rule)]
    outcome = dynabro("run", "--aggregator", "own", *QUICK)
    assert "already in" in outcome.out
    assert outcome.err == ""
    write_rule(rule.parent, factor="2.0")
    plugins._loaded.clear()
    REGISTRIES["aggregators"]._entries.pop("own")
    sys.modules.pop("own_rule")
    forget()
    outcome = dynabro("run", "--plugin", "own_rule.py", "--aggregator", "own", *QUICK)
    assert outcome.problems == [
        (
            "warning: stored runs made with other code: 1 of 1 (aggregators/own: 1); --rerun "
            "repeats it"
        ),
    ]


DATA = """
from pathlib import Path
import numpy as np
import torch
from torch import nn
from dynabro_cli.plugins import metrics, model, task

@task("my-data", reference="nobody")
def my_data():
    "A file beside this one."
    with np.load(Path(__file__).with_name("side.npz")) as file:
        return file["X"], file["y"]

@model("my-start", reference="nobody")
def my_start(shape):
    "A layer whose weights are in a file."
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    network[1].weight.copy_(torch.load(Path(__file__).with_name("start.pt")))
    return network

@metrics
def weight(model, data):
    return {"weight": 1.0}
"""


def test_files_beside_a_plugin_are_data(
    dynabro: Dynabro, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrays of a task, the weights that a model starts with, and the code of a metric."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    x, y = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2
    (folder / "own_data.py").write_text(DATA)
    np.savez(folder / "side.npz", X=x, y=y)
    torch.save(torch.ones(2, 4), folder / "start.pt")
    command = (
        "run",
        "--plugin",
        "own_data.py",
        "--task",
        "my-data",
        "--model",
        "my-start",
        "--method",
        "sgd",
        *QUICK[-3:],
    )
    with fresh():
        assert dynabro(*command).code == 0
        ((text,),) = rows("SELECT code_digests FROM runs")
        digests = json.loads(str(text))
        assert {
            "data/my-data",
            "data/models/my-start",
            "models/my-start",
            "tasks/my-data",
            "metrics/weight",
        } <= set(digests)
        assert dynabro(*command).err == ""
        torch.save(torch.zeros(2, 4), folder / "start.pt")
        np.savez(folder / "side.npz", X=x, y=y[::-1])
        found = (
            "warning: stored runs made with other data: 1 of 1 (models/my-start: 1, "
            "my-data: 1); --rerun repeats it"
        )
        assert dynabro(*command).problems == [found]


def test_a_sweep_names_files_beside_it(dynabro: Dynabro, folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    write_rule(below)
    (below / "own.yaml").write_text(SWEEP.format(plugins="[own_rule.py]"))
    what = (
        "the plugins that its file names are not loaded here, and their components cannot "
        "be checked"
    )
    option = f"--plugin {below}/own_rule.py"
    # which run no stranger's code
    for command in (("sweep", "below/own.yaml", "--dry-run"), ("select", "below/own.yaml")):
        outcome = dynabro(*command)
        assert (outcome.code, plugins.loaded()) == (2, ())
        assert outcome.problems[0] == f"warning: own: {what}. Try: {option}, which runs their code"
        # no name is called unknown, with a suggestion that would be wrong
        assert outcome.problems[1:] == ["own: components of these plugins are unknown"]
    outcome = dynabro("sweep", "below/own.yaml", "--dry-run", *option.split())
    assert (outcome.code, outcome.out.splitlines()[1], outcome.err) == (0, "2 runs planned", "")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{a: b}", ["own.yaml:3: plugins must be a text"]),
        (
            "[gone.py]",
            [
                "warning: own runs the code of plugins that its file names: {folder}/gone.py",
                (
                    "plugin={folder}/gone.py: it cannot be read (No such file or directory). Try: "
                    "dynabro new aggregator NAME"
                ),
            ],
        ),
    ],
)
def test_a_sweep_with_wrong_plugins_is_refused(
    dynabro: Dynabro, folder: Path, text: str, problems: list[str]
) -> None:
    (folder / "own.yaml").write_text(SWEEP.format(plugins=text))
    outcome = dynabro("sweep", "own.yaml")
    assert (outcome.code, outcome.problems) == (
        2,
        [problem.format(folder=folder) for problem in problems],
    )


@pytest.mark.thorough
def test_a_database_with_unknown_components_is_listed_plotted_and_merged(
    dynabro: Dynabro, folder: Path
) -> None:
    with fresh():
        write_rule(folder)
        assert dynabro("run", "--plugin", "own_rule.py", "--aggregator", "own", *QUICK).code == 0
    assert "unknown aggregator 'own'" in dynabro("show", "aggregators/own").err
    outcome = dynabro("runs", "--json")
    assert [row["aggregator"] for row in json.loads(outcome.out)] == ["own"]
    assert outcome.err == ""
    for command in (
        ("show", "runs/1"),
        ("plot", "final"),
        ("plot", "curves"),
        ("db", "check"),
        ("db", "merge", "results.db", "--db", "other.db"),
        ("runs", "--db", "other.db"),
        ("status",),
        ("export", "curves", "--csv", "curves.csv"),
    ):
        outcome = dynabro(*command)
        assert outcome.code == 0, (command, outcome.err)
    assert "own" in dynabro("query", "SELECT aggregator FROM runs", "--db", "other.db").out


def test_an_unknown_component_says_how_to_load_it(dynabro: Dynabro) -> None:
    outcome = dynabro("run", "--aggregator", "zzz", *QUICK)
    assert outcome.problems[0].endswith(
        "; load your own with --plugin FILE, in Python with load_plugin(FILE)"
    )


# --- what goes wrong


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        (
            "a.py",
            "x = 1\n1/0\n",
            (
                "{folder}/a.py, line 2: ZeroDivisionError: division by zero. Try: python "
                "{folder}/a.py, "
            ),
        ),
        ("a.py", "def f(:\n", "{folder}/a.py, line 1: SyntaxError: "),
        (
            "a.py",
            "import no_such_module\n",
            "{folder}/a.py, line 1: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("a.py", "\nraise SystemExit(0)\n", "{folder}/a.py, line 2: SystemExit: 0"),
        ("b.py", "import a_part\n", "{folder}/b.py, line 1: ModuleNotFoundError: "),
    ],
)
def test_an_exception_while_loading_is_a_line(
    dynabro: Dynabro, folder: Path, file: str, content: str, problem: str
) -> None:
    (folder / file).write_text(content)
    outcome = dynabro("list", "--plugin", file)
    assert outcome.code == 78
    (line,) = outcome.problems
    assert line.startswith(problem.format(folder=folder))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "gone.py",
            (
                "plugin=gone.py: it cannot be read (No such file or directory). Try: dynabro new "
                "aggregator NAME"
            ),
        ),
        (
            "pipe.py",
            "plugin=pipe.py: it cannot be read (it is a pipe). Try: dynabro new aggregator NAME",
        ),
        (
            "no_such.module",
            (
                "plugin=no_such.module: there is no such module. Try: a file that ends in .py, or "
                "pip install of"
            ),
        ),
        (
            "./rule.txt",
            (
                "plugin=./rule.txt: it is not a Python file. Try: a file that ends in .py, or a "
                "module's name"
            ),
        ),
    ],
)
def test_a_plugin_that_does_not_exist_is_refused(
    dynabro: Dynabro, folder: Path, name: str, problem: str
) -> None:
    os.mkfifo(folder / "pipe.py")
    outcome = dynabro("list", "--plugin", name)
    assert outcome.code == 2
    (line,) = outcome.problems
    assert line.startswith(problem)


@pytest.mark.parametrize(
    ("name", "first"), [("cwtm", "dynabro_cli.components.aggregators.cwtm"), ("own", "own_rule")]
)
def test_a_name_that_is_taken_is_refused(
    dynabro: Dynabro, rule: Path, name: str, first: str
) -> None:
    other = write_rule(rule.parent, "other.py", name=name)
    outcome = dynabro("list", "--plugin", str(rule), "--plugin", str(other))
    assert outcome.code == 78
    (line,) = outcome.problems
    assert line == (
        f"{other}, line 14: NameTakenError: aggregator {name!r} is registered twice; {first} "
        "has the first one. "
        "Try: another name, or one of the two"
    )


def test_what_a_plugin_prints_is_not_in_the_output(dynabro: Dynabro, rule: Path) -> None:
    rule.write_text("print('hello')\n" + rule.read_text())
    outcome = dynabro("run", "--plugin", str(rule), "--aggregator", "own", *QUICK, "--json")
    assert json.loads(outcome.out)["aggregator"] == "own"
    assert "hello\n" in outcome.err


def test_an_exception_of_the_factory_is_a_line(dynabro: Dynabro, rule: Path) -> None:
    outcome = dynabro("run", "--plugin", str(rule), "--aggregator", "own:broken=factory", *QUICK)
    assert (outcome.code, outcome.problems) == (
        78,
        [
            (
                f"aggregator 'own': {rule}, line 18: KeyError: 'in the factory'. Try: its test, "
                "which shows the traceback"
            )
        ],
    )


def test_an_exception_during_a_run_is_a_line_and_the_log_has_the_traceback(
    dynabro: Dynabro, rule: Path
) -> None:
    outcome = dynabro("run", "--plugin", str(rule), "--aggregator", "own:broken=rule", *QUICK)
    assert outcome.code == 78
    (line,) = outcome.problems
    assert line.startswith(
        f"the run failed ({rule}, line 22: ZeroDivisionError: in the rule) and is stored as "
        "failed. "
    )
    log = dynabro("logs", "1").out
    assert "Traceback (most recent call last):" in log
    assert f'File "{rule}", line 22, in rule' in log


# --- in another process


def test_a_sent_plugin_takes_the_files_beside_it_with_it(folder: Path) -> None:
    """Also if its folder does not exist there, or has other files."""
    from dynabro_cli.core.registration.digests import of_entry, with_imports

    (folder / "own_part.py").write_text("FACTOR = 3.0\n")
    rule = write_rule(folder, imports="from own_part import FACTOR\n", factor="FACTOR")
    with fresh():
        plugins.load([str(rule)])
        (sent,) = with_imports(plugins.loaded())
        digest = of_entry(REGISTRIES["aggregators"].entry("own"))
    assert [name for name, _ in sent.sources] == ["own_rule.py", "own_part.py"]
    rule.write_text("1/0")
    (folder / "own_part.py").unlink()
    plugins.load_sent([sent])
    entry = REGISTRIES["aggregators"].entry("own")
    assert of_entry(entry) == digest
    assert entry.factory.__globals__["FACTOR"] == 3.0
    assert entry.factory.__code__.co_filename == str(rule)
    assert worker.simulation  # which loads them before it reads the spec


def test_two_versions_of_a_plugin_do_not_share_a_process(rule: Path) -> None:
    plugins.load([str(rule)])
    (here,) = plugins.loaded()
    plugins.load_sent([here])
    other = plugins.Plugin(here.name, ((rule.name, b"1"),))
    with pytest.raises(plugins.PluginError, match="another version"):
        plugins.load_sent([other])


def test_a_module_must_be_installed_where_runs_are_made() -> None:
    with pytest.raises(
        plugins.PluginError, match=r"no_such_module.* on every machine that makes runs"
    ):
        plugins.load_sent([plugins.Plugin("no_such_module")])


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("dynabro_cli.methods._api", "MeansMethod", "dynabro_cli.components.methods"),
        ("dynabro_cli.lazy", "torch", "dynabro_cli.core.lazy"),
        ("dynabro_cli.components", "parameter", "dynabro_cli.plugins"),
    ],
)
def test_a_plugin_that_imports_a_moved_module_gets_its_place(
    module: str, name: str, now: str, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "old.py").write_text(f"from {module} import {name}")
    outcome = dynabro("list", "methods", "--plugin", "old.py")
    assert outcome.code == 78
    before = ".".join(module.split(".")[:2])
    assert outcome.err.endswith(f". Try: {now} in place of {before}\n")
    (folder / "new.py").write_text(f"from {module.replace(before, now)} import {name}")
    assert dynabro("list", "methods", "--plugin", "new.py").code == 0


def test_a_moved_module_is_found_by_its_earlier_name(dynabro: Dynabro) -> None:
    """Sweeps may name it."""
    named = dynabro("list", "methods", "--plugin", "dynabro_cli.metrics.classes")
    assert (named.code, named.err) == (0, "")
