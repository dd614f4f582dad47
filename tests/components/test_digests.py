"""Digests of components and of the engine: what they cover, how they are found without torch, and
what counts as changed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynabro_cli.components import digests
from dynabro_cli.components.digests import (
    DIGITS,
    ENGINE,
    ROOT,
    CodeComparison,
    changed,
    changed_components,
    compare,
    digests_of,
    mixture,
    parse,
)
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.registries import REGISTRIES
from dynabro_cli.tasks import digits

ZEROS = "0" * DIGITS


def names(paths: set[Path]) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in paths}


def covered(name: str) -> set[str]:
    """The files of a component's digest."""
    return names(digests._with_imports(ROOT / f"{name}.py"))


def text(**changes: str) -> str:
    """The digests of a run at hand; ``changes`` replace some of them."""
    known = {name: digests.at_hand(name) for name in ("aggregators/cwtm", "attacks/sf", ENGINE)}
    return json.dumps(
        known | {name.replace("_", "/", 1): digest for name, digest in changes.items()}
    )


# --- what is covered


def test_a_component_is_its_file_and_those_that_it_imports_of_components() -> None:
    assert covered("aggregators/mean") == {"aggregators/mean.py"}
    assert covered("aggregators/cwtm") == {
        f"aggregators/{name}.py" for name in ("cwtm", "_order", "_order_kernel")
    }
    assert covered("aggregators/krum") == {"aggregators/krum.py", "aggregators/_selection.py"}
    assert {"tasks/cifar10.py", "tasks/mnist.py", "tasks/_torchvision.py"} <= covered(
        "tasks/image_folder"
    )
    assert covered("pre_aggregators/arc") == {"pre_aggregators/arc.py"}


DESCRIBING = re.compile(
    r"(components|machine)/.*|experiment/(__init__|data|effect|key|resolve|spec)|errors|events|lazy|limits"
)
"""Modules that describe a run, its errors or its machine; their effect on a spec is in its key."""
LOADED = """
import json, pathlib, sys
import dynabro_cli.simulation.setup
print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith("dynabro_cli.")]))
"""


@pytest.mark.thorough
def test_the_engine_is_what_computes_and_is_no_component() -> None:
    found = names(set(digests._engine_files()))
    loaded = {str(Path(file).relative_to(ROOT)) for file in program(LOADED, ROOT.parent)}
    kinds = {f"{kind}/__init__.py" for kind in digests.KINDS}
    assert {
        name for name in loaded - kinds if not DESCRIBING.fullmatch(name.removesuffix(".py"))
    } <= found
    assert {
        "simulation/loop.py",
        "gradients/kernels/linear.cpp",
        "vectors/gram.cpp",
        "aggregators/_weiszfeld.cpp",
    } <= found
    assert found.isdisjoint(
        {"experiment/spec.py", "aggregators/cwtm.py", "attacks/sf.py", "methods/sgd.py"}
    )
    assert all([*ROOT.glob(pattern)] for pattern in digests.ENGINE_FILES if "*" not in pattern)


def test_every_component_is_found_by_its_name_and_by_its_entry() -> None:
    for kind, registry in REGISTRIES.items():
        for name, entry in registry.entries().items():
            digest = digests.at_hand(f"{kind}/{name}")
            assert digest is not None
            assert digest == digests.of_entry(entry), name
    assert set(REGISTRIES) == set(digests.KINDS)
    assert digests.at_hand("aggregators/nothing") is None


def test_a_run_has_all_of_its_components() -> None:
    spec = RunSpec(
        attack="mixed:parts=sf/ipm:epsilon=2",
        pre_aggregators="nnm+clipping:c=2",
        method="dynabro",
        aggregator="gm",
    )
    found = parse(digests_of(resolve(spec).components))
    assert found is not None
    assert set(found) == {
        *(
            "tasks/digits",
            "models/cnn-digits",
            "methods/dynabro",
            "aggregators/gm",
            "attacks/mixed",
            "attacks/sf",
            "attacks/ipm",
        ),
        *(
            "pre_aggregators/nnm",
            "pre_aggregators/clipping",
            "switching/periodic",
            "partitions/iid",
            ENGINE,
        ),
    }
    assert changed(json.dumps(found)) == ()


PROGRAM = """
import json, sys
from dynabro_cli.components import digests
names = ("aggregators/cwtm", "aggregators/cwmed", "aggregators/mean", "attacks/sf", "engine")
print(json.dumps({name: digests.at_hand(name) for name in names} | {"torch": "torch" in sys.modules}))
"""  # noqa: E501


def program(text: str, root: Path) -> Any:
    answer = subprocess.run(
        [sys.executable, "-c", text], cwd=root, capture_output=True, text=True, check=True
    )
    return json.loads(answer.stdout)


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program in it, to be edited."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shutil.copytree(ROOT, tmp_path / ROOT.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.thorough
def test_an_edit_changes_the_digests_that_cover_it_and_no_other(copy: Path) -> None:
    before = program(PROGRAM, copy)
    assert before == {name: digests.at_hand(name) for name in before if name != "torch"} | {
        "torch": False
    }
    package = copy / ROOT.name
    (package / "aggregators" / "_api.py").touch()
    with (package / "experiment" / "spec.py").open("a") as file:
        file.write("\nMORE = 1\n")
    assert program(PROGRAM, copy) == before

    with (package / "aggregators" / "_order.py").open("a") as file:
        file.write("# a comment\n")
    after = program(PROGRAM, copy)
    assert [name for name in before if before[name] != after[name]] == [
        "aggregators/cwtm",
        "aggregators/cwmed",
    ]
    with (package / "gradients" / "kernels" / "linear.cpp").open("a") as file:
        file.write("// a comment\n")
    last = program(PROGRAM, copy)
    assert [name for name in before if after[name] != last[name]] == ["engine"]


EDITED_WHILE_IT_RUNS = """
import json, pathlib, sys
import dynabro_cli.simulation
from dynabro_cli.components import digests
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.tasks import digits
for name in ("aggregators/_order.py", "streams.py"):
    file = pathlib.Path(digests.ROOT, name)
    file.write_text(file.read_text() + "MORE = 1\\n")
print(json.dumps({name: digests.at_hand(name) for name in ("aggregators/cwtm", "engine")}))
"""


def test_a_process_that_computes_knows_the_code_that_it_began_with(copy: Path) -> None:
    assert program(EDITED_WHILE_IT_RUNS, copy) == {
        name: digests.at_hand(name) for name in ("aggregators/cwtm", "engine")
    }


# --- components of a user's


def entry(file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The entry that a user's file registers."""
    monkeypatch.setitem(sys.modules, "a_users_rules", SimpleNamespace(__file__=str(file)))
    return SimpleNamespace(factory=SimpleNamespace(__module__="a_users_rules"))


def test_a_file_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a user's file covers files beside it and dynabro's, wherever it is, but not
    installed packages.
    """
    found = []
    for place, helper, body in (("a", "1", "2"), ("b", "1", "2"), ("c", "0", "2"), ("d", "1", "0")):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "helper.py").write_text(f"value = {helper}")
        (folder / "torch.pyi").write_text("")
        rules = folder / "rules.py"
        rules.write_text(
            "import torch, missing, helper\nfrom torch import (\n    nn,  # layers\n)\n"
            f"from dynabro_cli.aggregators._order import middle_mean\nbody = {body}"
        )
        found.append(digests.of_entry(entry(rules, monkeypatch)))
        files = digests._with_imports(rules)
        ours = {ROOT / "aggregators" / name for name in ("_order.py", "_order_kernel.py")}
        assert files == {rules, folder / "helper.py"} | ours
    assert found[0] == found[1]
    assert len({*found}) == 3
    assert None not in found


def test_a_package_of_a_user(tmp_path: Path) -> None:
    package = tmp_path / "rules" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package.parent / "near.py").write_text("")
    (package / "here.py").write_text("from .......... import too_far")
    (tmp_path / "elsewhere.py").write_text("")
    (package / "there.py").write_text("")
    lines = (
        "from ..near import a",
        "from .here import b",
        "def f():\n    from . import (\n        there as c,  # late\n    )",
    )
    (package / "rule.py").write_text(
        "\n".join((*lines, "import elsewhere", "import rules.inner.rule as d, rules.inner"))
    )
    files = digests._with_imports(package / "rule.py")
    assert files == {
        package / "rule.py",
        package / "here.py",
        package / "there.py",
        package.parent / "near.py",
    }


def test_without_sources_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert digests.of_entry(entry(tmp_path / "gone.py", monkeypatch)) is None
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    digests._engine_files.cache_clear()
    assert digests.of_engine.__wrapped__() is None
    digests._engine_files.cache_clear()
    assert digests._of_shipped.__wrapped__("aggregators", "cwtm") is None


def test_a_run_whose_code_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "of_engine", lambda: None)
    gone = entry(tmp_path / "gone.py", monkeypatch)
    assert digests_of({"aggregators/gone": gone}) is None
    assert digests_of(
        {"aggregators/gone": gone, "attacks/sf": REGISTRIES["attacks"].entry("sf")}
    ) == json.dumps({"attacks/sf": digests.at_hand("attacks/sf")}, separators=(",", ":"))


# --- comparing


def test_what_has_changed() -> None:
    assert changed(text()) == ()
    assert changed(text(attacks_sf=ZEROS, engine=ZEROS)) == ("attacks/sf", "engine")
    assert changed_components(text(attacks_sf=ZEROS, engine=ZEROS)) == ("attacks/sf",)
    assert changed(text(aggregators_gone=ZEROS)) == ()  # which nobody knows here


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            None,
            "",
            "null",
            "{}",
            "1",
            "[" * 100_000,
            '{"engine": 1}',
            '{"engine": "x"}',
        ),
        *(
            f'{{"{name}": "{ZEROS}"}}'
            for name in (
                "\\u001b[31m/x",
                "a/../b",
                "metrics/a b",
            )
        ),
    ],
)
def test_what_is_not_known_has_not_changed(wrong: str | None) -> None:
    assert parse(wrong) is None
    assert changed(wrong) == ()
    assert compare([(wrong, 3)]) == CodeComparison(runs=3, unknown=3)
    assert compare([(wrong, 3)]).line is None


def test_differences_are_one_line() -> None:
    found = compare(
        [
            (text(), 5),
            (text(attacks_sf=ZEROS), 2),
            (text(attacks_sf=ZEROS, aggregators_cwtm=ZEROS), 1),
            (None, 4),
        ]
    )
    assert found == CodeComparison(12, 3, {"attacks/sf": 3, "aggregators/cwtm": 1}, 0, 4)
    assert (
        found.line
        == "stored runs made with other code: 3 of 12 (attacks/sf: 3, aggregators/cwtm: 1)"
    )
    found = compare([(text(engine=ZEROS), 2), (text(), 1)])
    assert found == CodeComparison(3, 0, {}, 2, 0)
    assert found.line == "stored runs made with another version of the engine: 2 of 3"
    found = compare([(text(engine=ZEROS, attacks_sf=ZEROS), 2)])
    assert found.line == (
        "stored runs made with other code: 2 of 2 (attacks/sf: 2); with another version of the "
        "engine: 2 of 2"
    )
    found = compare(
        [
            (text(data_digits=ZEROS), 2),
            (text(data_digits="1" * DIGITS, engine=ZEROS), 1),
            (text(data_gone=ZEROS), 1),
        ]
    )
    assert found == CodeComparison(4, 0, {}, 1, 0, 3, {"digits": 3}, {"digits": 2})
    assert found.line == (
        "stored runs made with other data: 3 of 4 (digits: 3); with another version of the "
        "engine: 1 of 4"
    )
    assert mixture(found.versions) == (
        "these runs were made with 2 versions of the data of digits, which no mean or "
        "comparison should mix"
    )
    assert compare([(text(data_digits=digits.DIGEST), 2)]).line is mixture({}) is None
    assert changed_components(text(data_digits=ZEROS, engine=ZEROS)) == ("data/digits",)
    many = CodeComparison(9, 9, {f"aggregators/{letter}": 9 for letter in "abcdef"})
    assert many.line is not None
    assert many.line.endswith(
        "(aggregators/a: 9, aggregators/b: 9, aggregators/c: 9, aggregators/d: 9, and 2 more)"
    )
