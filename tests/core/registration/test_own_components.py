"""Components of the user's: what ``dynabro new`` writes passes its tests, and the kit finds what is
broken.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dynabro_cli import testing
from dynabro_cli.cli.read.catalogue import KINDS, rendered
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.plugins import attack as attack_of
from tests.cli.conftest import Dynabro
from tests.cli.conftest import dynabro as dynabro
from tests.cli.conftest import folder as folder
from tests.own import fresh
from tests.runs.store.made import read
from tests.test_readme import blocks

ROOT = Path(__file__).parents[3]
ALL_KINDS = """
  task: my-task
  model: my-model
  method: my-method
  aggregator: my-aggregator
  pre_aggregators: my-pre-aggregator
  attack: my-attack
  switching: my-switching
  data: my-partition
"""
CHECKS = {
    "aggregators": testing.check_aggregator,
    "pre_aggregators": testing.check_pre_aggregator,
    "attacks": testing.check_attack,
    "switching": testing.check_switching,
    "methods": testing.check_method,
    "models": testing.check_model,
    "partitions": testing.check_partition,
}


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    with fresh():
        yield


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda own, byzantine: own[~byzantine][0], "IndexError: index 0 is out of bounds"),
        (lambda own, byzantine: own[~byzantine].quantile(0.5, dim=0), "RuntimeError: quantile"),
    ],
)
def test_an_attack_that_fails_if_all_workers_are_byzantine(
    call: Callable[..., Any], error: str
) -> None:
    def first_honest(own: Any, byzantine: Any) -> Any:
        """First honest vector."""
        return call(own, byzantine)

    attack_of("first-honest")(first_honest)
    with pytest.raises(
        AssertionError, match=f"first-honest with 1 of 1 workers Byzantine: it raises {error}"
    ):
        testing.check_attack("first-honest")


# --- dynabro new


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_passes_its_tests(kind: str, dynabro: Dynabro, folder: Path) -> None:
    # a name for each: torch's compiler remembers modules by their names
    file = f"a_{kind}_2.py".replace("-", "_")
    outcome = dynabro("new", kind, f"a-{kind}-2", "--out", "below")
    assert (outcome.code, outcome.out.splitlines()) == (0, [f"below/{file}", f"below/test_{file}"])
    assert outcome.err.splitlines()[0] == f"next: pytest below/test_{file}"
    spec = importlib.util.spec_from_file_location("own_test", folder / "below" / f"test_{file}")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test(*([folder] if inspect.signature(test).parameters else []))


@pytest.mark.parametrize("kind", ["aggregator", "attack"])
def test_the_documents_show_what_it_writes(kind: str) -> None:
    assert (
        f"```python\n{rendered(kind, f'my-{kind}')}```\n"
        in (ROOT / "docs" / "extending.md").read_text()
    )


@pytest.mark.thorough
def test_the_documents_use_the_kit() -> None:
    (block,) = [
        text
        for text in blocks("python", (ROOT / "docs" / "extending.md").read_text())
        if "dynabro_cli.testing" in text
    ]
    exec(compile(block, "extending.md", "exec"), {})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("aggregatr", "x"),
            (
                "kind=aggregatr: not a kind of component (did you mean 'aggregator'?). Try: "
                "aggregator, pre-"
            ),
        ),
        (
            ("attack", "My_Attack"),
            "name=My_Attack: it must be lower-case letters, digits and hyphens. Try: my-rule",
        ),
        (("attack", "here"), "name=here: here.py exists already. Try: another name, or --out DIR"),
    ],
)
def test_what_it_refuses(
    arguments: tuple[str, ...], problem: str, dynabro: Dynabro, folder: Path
) -> None:
    (folder / "here.py").write_text("mine")
    outcome = dynabro("new", *arguments)
    assert outcome.code == 2
    assert outcome.problems[0].startswith(problem)
    assert (folder / "here.py").read_text() == "mine"
    assert list(folder.iterdir()) == [folder / "here.py"]


@pytest.mark.thorough
def test_the_tests_run_with_pytest(dynabro: Dynabro, folder: Path) -> None:
    for kind in KINDS:
        assert dynabro("new", kind, f"new-{kind}").code == 0
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        str(folder),
    ]
    answer = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ
    )
    assert answer.returncode == 0, answer.stdout
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed
    assert int(passed[1]) >= len(KINDS)


# --- in other processes


def write_all(folder: Path) -> list[Path]:
    """Write a component of each kind that a run has; return the files."""
    files = [folder / f"my_{kind.replace('-', '_')}.py" for kind in KINDS if kind != "figure"]
    for kind, file in zip(KINDS, files, strict=False):
        file.write_text(rendered(kind, f"my-{kind}"))
    return files


@pytest.mark.thorough
def test_a_sweep_of_all_kinds_in_worker_processes(dynabro: Dynabro, folder: Path) -> None:
    """All eight of one run, two processes; what was stored says which code; another command resumes
    and knows them.
    """
    files = write_all(folder)
    (folder / "own.yaml").write_text(
        f"""
name: own
plugins: [{", ".join(file.name for file in files)}]
base:
{ALL_KINDS}
  budget: 30
seeds: 0..3
"""
    )
    command = [
        sys.executable,
        "-m",
        "dynabro_cli",
        "sweep",
        "own.yaml",
        "--jobs",
        "2",
        "-q",
        "--device",
        "cpu",
    ]
    answer = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ
    )
    assert answer.returncode == 0, answer.stderr
    assert "4 runs in results.db: 4 finished" in answer.stdout
    for (text,) in read(folder / "results.db", "SELECT code_digests FROM runs"):
        assert {name for name in json.loads(text) if "/my-" in name} == {
            *(
                "aggregators/my-aggregator",
                "pre_aggregators/my-pre-aggregator",
                "attacks/my-attack",
                "methods/my-method",
            ),
            *(
                "models/my-model",
                "partitions/my-partition",
                "switching/my-switching",
                "tasks/my-task",
            ),
            "data/my-task",
        }
    (folder / "my_method.py").write_text(
        (folder / "my_method.py").read_text().replace("(1 - parameters.beta) * ", "1.0 * ")
    )
    plugins = [word for file in sorted(folder.glob("my_*.py")) for word in ("--plugin", file.name)]
    answer = subprocess.run(
        [*command, "--dry-run", *plugins],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert "with other code: 4 of 4 (methods/my-method: 4)" in answer.stderr


# --- the kit

HEAD = """
from dynabro_cli.core.lazy import torch
from dynabro_cli.components.aggregators import _api as rules
from dynabro_cli.components.attacks import _api as attacks
from dynabro_cli.components.switching import _api as switching
from dynabro_cli.components.methods import _api as methods
from dynabro_cli.components.partitions import _api as partitions
from dynabro_cli.components.pre_aggregators import _api as stages
import numpy as np
calls = []

"""


def bad(module: str, *body: str) -> str:
    """A component whose factory has this body."""
    lines = "".join(f"\n    {line}" for line in body)
    return (
        f'@{module}.REGISTRY.register("bad", reference="x")\ndef bad(_, setting):\n    '
        f'"Bad."{lines}\n'
    )


def rule(expression: str) -> str:
    return bad("rules", f"return rules.stateless(lambda g: {expression}, None)")


def attack(expression: str, more: str = "") -> str:
    return bad("attacks", f"return attacks.memoryless(lambda own, byzantine: {expression}, {more})")


def method(send: str, direct: str) -> str:
    return f"return methods.MeansMethod(send={send}, direct={direct})"


REPLACED = "attacks.replace(own, byzantine, {})"
SENDS = "methods.send_gradients"
FORGETS = "lambda g, s: (g + s.get('m', 0), {'m': g})"
BROKEN = [
    ("aggregators", rule("g.mean()"), "the aggregate must be [d]"),
    (
        "aggregators",
        rule("g.float().mean(0)"),
        "the rule must return torch.float64, not torch.float32",
    ),
    ("aggregators", rule("g[0]"), "returns a view"),
    ("aggregators", rule("g.add_(1).mean(0)"), "it changes the messages"),
    ("aggregators", rule("g[0].clone()"), "the order of the workers matters"),
    ("aggregators", rule("g.mean(0) * 2"), "does not shift it"),
    ("aggregators", rule("g.mean(0) + 1"), "a factor does not scale"),
    ("aggregators", rule("g.mean(0)"), "finite messages of size"),
    ("aggregators", rule("g.mean(0)").replace('    "Bad."\n', ""), "needs a docstring"),
    ("attacks", attack("own.neg_()"), "it changes its input"),
    ("attacks", attack("-own"), "the honest rows must not change"),
    ("attacks", attack(REPLACED.format("float('nan')")), "it sends NaN or Inf"),
    (
        "attacks",
        attack(REPLACED.format("-own"), "reads_own=False"),
        "reads Byzantine workers' own vectors",
    ),
    (
        "attacks",
        attack(REPLACED.format("torch.randn(())")),
        "called again, it sends other messages",
    ),
    (
        "switching",
        bad("switching", "return switching.Switching(lambda t: torch.rand(setting.workers) < 0.5)"),
        "a mask must belong to the caller|depend on the order",
    ),
    (
        "switching",
        bad(
            "switching",
            "return switching.Switching(lambda t: torch.arange(setting.workers) < t % 3, always=2)",
        ),
        "always=2, but masks have",
    ),
    (
        "methods",
        bad("methods", method(FORGETS, "methods.direct_aggregate")),
        "messages depend on earlier gradients: True; say remembers=",
    ),
    (
        "methods",
        bad(
            "methods",
            method(SENDS, "lambda a, plan: (calls.append(1), (a[0] * len(calls), None))[1]"),
        ),
        "a run made twice has other numbers",
    ),
    (
        "partitions",
        bad(
            "partitions",
            "def split(labels, streams):",
            "    return np.array_split(np.arange(len(labels) - 1), setting.workers)",
            "return partitions.Partition(split)",
        ),
        "the parts must have each sample once",
    ),
    (
        "pre_aggregators",
        bad(
            "stages",
            "return stages.PreAggregator(lambda g: g[:4].clone(), setting.workers, lambda k: None)",
        ),
        "it declares 9 messages",
    ),
]


@pytest.mark.parametrize(
    ("kind", "code", "promise"), BROKEN, ids=[promise for _, _, promise in BROKEN]
)
def test_a_broken_promise_is_found(kind: str, code: str, promise: str, tmp_path: Path) -> None:
    file = tmp_path / "bad_one.py"
    file.write_text(HEAD + code)
    with pytest.raises(
        AssertionError, match=f"^bad(\\+cwmed)?.*({promise.replace('[', '.').replace(']', '.')})"
    ):
        CHECKS[kind]("bad", plugin=file)


def test_state_that_is_not_in_the_state_is_found(tmp_path: Path) -> None:
    """A rule with a memory of its own agrees with itself in a run from the start, and not after a
    checkpoint.
    """
    file = tmp_path / "bad_one.py"
    settle = (
        "seen = []",
        "def settle(aggregate, state):",
        "    seen.append(aggregate)",
        "    return sum(seen) / len(seen), state",
        method(SENDS, "methods.direct_aggregate, settle=settle"),
    )
    code = bad("methods", *settle)
    file.write_text(HEAD + code)
    with pytest.raises(AssertionError, match="has other numbers"):
        testing.check_method("bad", plugin=file)


def test_a_promise_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="not a promise"):
        testing.check_aggregator("cwtm", but=["ordr"])


def test_an_unknown_component_is_refused() -> None:
    with pytest.raises(SpecError, match="unknown aggregator"):
        testing.check_aggregator("cwtmm")


NEEDED = {
    "mfm": "mfm:threshold=60",
    "centered-clipping": "centered-clipping:tau=2",
    "clipping": "clipping:c=20",
    "shift": "shift:lambda=2",
    "momentum-tailored": "momentum-tailored:lambda=2,beta=0.9",
    "periodic": "periodic:K=3",
    "bernoulli": "bernoulli:p=0.3,D=4,delta_max=0.4",
    "rotating": "rotating:period=4",
    "round-robin": "round-robin:K=3",
    "dirichlet": "dirichlet:alpha=0.5",
    "gamma": "gamma:similarity=0.4",
}
UNCHECKED = ("trace", "on-level", "adaptive", "cnn-mnist", "cnn-mnist-50", "gpt")
"""Strategies that need more than a setting, and networks that the kit's images do not fit."""
OFTEN = (
    "cwtm",
    "monna",
    "cge",
    "fltrust",
    "nnm",
    "arc",
    "sf",
    "alie",
    "label-flip",
    "periodic",
    "bernoulli",
    "dirichlet",
    "mlp",
    "momentum",
)
"""Components of each kind that the kit checks unless all are asked for."""
BUT = {
    "mfm": ["scale"],
    "monna": ["order"],
    "bulyan": ["order"],
    "bucketing": ["order"],
    "cge": ["origin"],
    "fltrust": ["origin", "identical"],
    "signguard": ["origin"],
    "sign-majority": ["origin", "scale", "identical"],
    "centered-clipping": ["origin", "scale", "identical"],
    "rfa": ["origin", "scale"],
    "clipping": ["origin", "scale", "identical"],
    "arc": ["origin"],
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        # contract and engine tests have all
        pytest.param(kind, name, marks=() if name in OFTEN else pytest.mark.slow)
        for kind in CHECKS
        for name in REGISTRIES[kind].entries()
        if name not in UNCHECKED
    ],
)
def test_every_component_of_ours_passes(kind: str, name: str) -> None:
    more = {"but": BUT[name]} if name in BUT else {}
    if kind == "aggregators":
        more["workers"] = 11
    CHECKS[kind](NEEDED.get(name, name), **more)  # type: ignore[arg-type]
