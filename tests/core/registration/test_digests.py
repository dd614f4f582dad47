"""Digests of components and of the engine: what they cover, how they are found without torch, and
what counts as changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks import digits
from dynabro_cli.core.registration import digests
from dynabro_cli.core.registration.digests import DIGITS, ENGINE, ROOT, at_hand, digests_of, parse
from dynabro_cli.core.registration.syntax import canonical
from dynabro_cli.experiment import comparison
from dynabro_cli.experiment.comparison import (
    CodeComparison,
    changed,
    changed_components,
    compare,
    mixture,
)
from dynabro_cli.experiment.resolve import resolve
from dynabro_cli.experiment.spec import RunSpec
from tests.tables import each_row

ZEROS = "0" * DIGITS
COMPONENTS = ROOT / "components"


def names(paths: set[Path]) -> set[str]:
    """Names of files in the package, or in its folder of components."""
    return {str(path.relative_to(ROOT)).removeprefix("components/") for path in paths}


def covered(name: str) -> set[str]:
    """The files of a component's digest."""
    return names(digests._with_imports(COMPONENTS / f"{name}.py"))


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
        f"aggregators/{name}.py" for name in ("cwtm", "_order", "_kernels/order_kernel")
    }
    assert covered("aggregators/krum") == {"aggregators/krum.py", "aggregators/_selection.py"}
    assert {"tasks/cifar10.py", "tasks/mnist.py", "tasks/_torchvision.py"} <= covered(
        "tasks/image_folder"
    )
    assert covered("pre_aggregators/arc") == {"pre_aggregators/arc.py"}


DESCRIBING = re.compile(
    r"core/(machine|registration)/.*|experiment/(__init__|conflicts|data|effect|key|resolve|spec)"
    r"|core/(__init__|errors|events|lazy|limits|package)|__init__|registries"
)
"""Modules that describe a run, its errors or its machine; their effect on a spec is in its key."""
LOADED = """
import json, pathlib, sys
import dynabro_cli.simulation.setup
print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith("dynabro_cli.")]))
"""


@pytest.mark.thorough
def test_the_engine_is_what_computes_and_is_no_component() -> None:
    found = names({*digests._files()[0]})
    loaded = names({Path(file) for file in program(LOADED, ROOT.parent)})
    kinds = {f"{kind}/__init__.py" for kind in (*digests.KINDS, "aggregators/_kernels")}
    assert {
        name for name in loaded - kinds if not DESCRIBING.fullmatch(name.removesuffix(".py"))
    } <= found
    assert {
        "simulation/loop.py",
        "gradients/kernels/linear.cpp",
        "core/vectors/gram.cpp",
        "aggregators/_kernels/weiszfeld.cpp",
    } <= found
    assert found.isdisjoint(
        {"experiment/spec.py", "aggregators/cwtm.py", "attacks/sf.py", "methods/sgd.py"}
    )
    places = {part for name in found for part in (*Path(name).parts, Path(name).suffix)}
    assert places >= digests.ENGINE_NAMES


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
from dynabro_cli.core.registration import digests
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    (package / "components" / "aggregators" / "_api.py").touch()
    with (package / "experiment" / "spec.py").open("a") as file:
        file.write("\nMORE = 1\n")
    assert program(PROGRAM, copy) == before

    with (package / "components" / "aggregators" / "_order.py").open("a") as file:
        file.write("MORE = 1\n")
    after = program(PROGRAM, copy)
    assert [name for name in before if before[name] != after[name]] == [
        "aggregators/cwtm",
        "aggregators/cwmed",
    ]
    with (package / "gradients" / "kernels" / "linear.cpp").open("a") as file:
        file.write("int more;\n")
    last = program(PROGRAM, copy)
    assert [name for name in before if after[name] != last[name]] == ["engine"]


EDITED_WHILE_IT_RUNS = """
import json, pathlib, sys
import dynabro_cli.simulation
from dynabro_cli.core.registration import digests
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.components.tasks import digits
for name in ("components/aggregators/_order.py", "core/streams.py"):
    file = pathlib.Path(digests.ROOT, name)
    file.write_text(file.read_text() + "MORE = 1\\n")
print(json.dumps({name: digests.at_hand(name) for name in ("aggregators/cwtm", "engine")}))
"""


def test_a_process_that_computes_knows_the_code_that_it_began_with(copy: Path) -> None:
    assert program(EDITED_WHILE_IT_RUNS, copy) == {
        name: digests.at_hand(name) for name in ("aggregators/cwtm", "engine")
    }


# --- layout and text of code


def moved(package: Path) -> None:
    """Move the engine and the components into another folder, and rewrite all imports."""
    kinds = package / "kinds"
    kinds.mkdir()
    (kinds / "__init__.py").write_text("")
    places = [f"components/{kind}" for kind in digests.KINDS]
    for place in (*places, "gradients", "simulation", "core/vectors", "core/streams.py"):
        (package / place).rename(kinds / Path(place).name)
    words = re.compile(
        rf"\bdynabro_cli\.(?:components\.({'|'.join(digests.KINDS)})\b|(gradients|simulation)\b"
        r"|core\.(vectors|streams)\b)"
    )
    for path in package.rglob("*.py"):
        path.write_text(
            words.sub(lambda word: f"dynabro_cli.kinds.{word[word.lastindex]}", path.read_text())
        )


ALL = """
import json
from dynabro_cli.core.registration import digests
names = [*digests._registered(), "engine"]
print(json.dumps({name: digests.at_hand(name) for name in names}))
"""


def test_a_move_changes_no_digest(copy: Path) -> None:
    before = program(ALL, copy)
    assert before.keys() > {"aggregators/cwtm", "methods/dynabro", "switching/evade", ENGINE}
    moved(copy / ROOT.name)
    order = copy / ROOT.name / "kinds" / "aggregators" / "_order.py"
    assert "import dynabro_cli" not in order.read_text()
    assert "from dynabro_cli.kinds.aggregators._kernels" in order.read_text()
    assert program(ALL, copy) == before
    order.write_text(order.read_text().replace("1 << 15", "1 << 16"))
    after = program(ALL, copy)
    assert {"aggregators/cwtm", "aggregators/cwmed"} <= {
        name for name in before if before[name] != after[name]
    }
    assert after[ENGINE] == before[ENGINE]


CODE = """
from __future__ import annotations

import torch
from dynabro_cli.components.aggregators import _order
from dynabro_cli.core.vectors.means import mean_of_rows, weighted

REGISTRY = Registry("aggregator", "dynabro_cli.components.aggregators")
LIMIT: int = 3


class Parameters:
    tau: float = parameter(1.0, above=0)


def rule(messages: Tensor, *, f: int = 1, keep: None = None) -> Tensor:
    if len(messages) > f:
        return weighted(messages, {"tau": f"{messages:>{LIMIT}}"})
    return [mean_of_rows(x) for x in messages if x is not None]
"""

SAME = {
    "comments and blank lines": ("LIMIT: int = 3", "\n\n# why\nLIMIT: int = 3  # for m"),
    "docstrings": ("    if len", '    """The rule."""\n    if len'),
    "texts after values": ("class P", '"""The limit."""\n\nclass P'),
    "quotation marks": ('"tau"', "'tau'"),
    "layout": ("(messages: Tensor, *, f", "(\n    messages: Tensor,\n    *,\n    f"),
    "a path": ("dynabro_cli.core.vectors.means", "dynabro_cli.base.sums"),
    "a relative path": ("from dynabro_cli.core.vectors.means", "from ..base"),
    "a package": ("from dynabro_cli.components.aggregators import", "from dynabro_cli import"),
    "an import of a module": (
        "from dynabro_cli.components.aggregators import _order",
        "import dynabro_cli.components.aggregators._order",
    ),
    "the order of imports": (
        "from dynabro_cli.core.vectors.means import mean_of_rows, weighted",
        "from dynabro_cli.a import weighted\nfrom dynabro_cli.b import mean_of_rows",
    ),
    "a path in a text": (
        '"dynabro_cli.components.aggregators")',
        '"dynabro_cli.parts.aggregators")',
    ),
}
OTHER = {
    "a constant": ("LIMIT: int = 3", "LIMIT: int = 4"),
    "the type of a constant": ("LIMIT: int = 3", "LIMIT: int = 3.0"),
    "a default": ("f: int = 1", "f: int = 2"),
    "no default": ("keep: None = None", "keep: None"),
    "an annotation": ("tau: float", "tau: int"),
    "a parameter's annotation": ("f: int", "f: float"),
    "an operator": ("len(messages) > f", "len(messages) >= f"),
    "an unpacking": ('{"tau": ', "{None: 1, **"),
    "a format": (":>{LIMIT}", ":<{LIMIT}"),
    "an imported name": ("import mean_of_rows", "import mean_of_columns"),
    "another name for it": ("import _order", "import _order as _other"),
    "another library": ("import torch", "import torch.nn"),
    "a text": ('"aggregator"', '"rule"'),
    "the end of a path in a text": (
        '"dynabro_cli.components.aggregators")',
        '"dynabro_cli.rules")',
    ),
    "a statement": ("LIMIT: int = 3\n", ""),
}


@each_row("name", SAME)
def test_what_does_not_compute_is_left_out(name: str) -> None:
    assert SAME[name][0] in CODE
    other = CODE.replace(*SAME[name])
    assert other != CODE
    assert canonical(other.encode(), "dynabro_cli") == canonical(CODE.encode(), "dynabro_cli")


@each_row("name", OTHER)
def test_what_computes_counts(name: str) -> None:
    assert OTHER[name][0] in CODE
    other = CODE.replace(*OTHER[name]).encode()
    assert canonical(other, "dynabro_cli") != canonical(CODE.encode(), "dynabro_cli")


def test_a_missing_default_is_not_the_default_none() -> None:
    for pair in (
        ("def f(*, a): 0", "def f(*, a=None): 0"),
        ("{**a}", "{None: a}"),
        ("x = True", "x = 1"),
        ("x = 'b'", "x = b'b'"),
        ("f'{a}b'", "f'{a}' 'c'"),
        ("f'{a}'", "f'{a!r}'"),
        ("import a.b", "import a.c"),
        ("lambda a: a", "lambda a, /: a"),
    ):
        assert len({canonical(code.encode(), "dynabro_cli") for code in pair}) == 2, pair


EVERY = """
@cache
async def f(a, /, b: int = 1, *c, d=None, **e) -> None:
    "left out"
    async with a as b, c: yield {**d, 1: 2}
    try: raise E from None
    except* (E, F) as e: del a[1:2, ...]
    else: pass
    match a:
        case [1, *_] | {"k": None, **r} if (n := 1j) < -0.5 != 1e400: pass
    f"{a:}{a!r:>{b}}{{}}" f"{a = }" "c" "\\u0378\\U0001fae8"
    return not [y async for x in z if x for y in x] and (lambda *p, q=2: p @ q)
"""


def test_the_text_of_a_tree_does_not_depend_on_the_version_of_python() -> None:
    text = canonical(EVERY.encode(), "dynabro_cli")
    assert hashlib.sha256(text).hexdigest()[:DIGITS] == "dd790eab29b9"


def test_a_digest_that_is_remembered_is_not_trusted_blindly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has a file for each content. A damaged one is replaced, and none is needed."""
    monkeypatch.setattr(digests, "cache_folder", lambda: tmp_path / "cache")
    parsed: list[bytes] = []
    monkeypatch.setattr(
        digests.syntax, "canonical", lambda code, _: parsed.append(code) or canonical(code, "x")
    )
    path = COMPONENTS / "aggregators" / "mean.py"
    first = digests.of_file.__wrapped__(path)
    (remembered,) = (tmp_path / "cache" / "code").iterdir()
    assert remembered.read_text() == first
    assert digests.of_file.__wrapped__(path) == first
    assert len(parsed) == 1
    for damage in (b"", b"\xff" * DIGITS, b"0" * 99):
        remembered.write_bytes(damage)
        assert digests.of_file.__wrapped__(path) == first
    assert len(parsed) == 4
    monkeypatch.setattr(digests, "cache_folder", lambda: path)  # no folder
    assert digests.of_file.__wrapped__(path) == first


def test_code_that_is_not_valid_counts_as_it_is(tmp_path: Path, copy: Path) -> None:
    before = program(ALL, copy)
    (copy / ROOT.name / "simulation" / "loop.py").write_text("def (")
    after = program(ALL, copy)
    assert [name for name in before if before[name] != after[name]] == [ENGINE]


# --- digests of earlier code


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The digests of a stored run, whose code gives the same numbers today."""
    old = {"aggregators/cwtm": "1" * DIGITS, "attacks/sf": "2" * DIGITS, ENGINE: "3" * DIGITS}
    table = {name: [digests.at_hand(name), ZEROS, digest] for name, digest in old.items()}
    monkeypatch.setattr(digests, "_same_code", lambda: table)
    return old


def test_earlier_code_with_the_same_numbers_is_not_reported(released: dict[str, str]) -> None:
    data = {"data/digits": digits.DIGEST}
    assert changed(json.dumps(released | data)) == ()
    assert changed(text(engine=released[ENGINE])) == ()
    assert changed(text(engine="4" * DIGITS)) == (ENGINE,)
    # a digest of another part
    assert changed(json.dumps(released | {"attacks/sf": released["aggregators/cwtm"]})) == (
        "attacks/sf",
    )


@pytest.mark.parametrize("name", ["aggregators/cwtm", ENGINE])
def test_the_line_comes_back_when_the_code_changes(
    released: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    usual = digests.at_hand
    monkeypatch.setattr(comparison, "at_hand", lambda x: "5" * DIGITS if x == name else usual(x))
    assert changed(json.dumps(released)) == (name,)


@pytest.mark.parametrize("name", ["aggregators/own", "metrics/own", "models/own"])
def test_the_engine_of_a_run_with_parts_of_a_user_is_reported(
    released: dict[str, str], name: str
) -> None:
    """Other parts than dynabro's may have other numbers with today's engine."""
    assert changed(json.dumps(released | {name: ZEROS})) == (ENGINE,)


@pytest.mark.thorough
def test_the_table_of_equal_code_is_todays() -> None:
    """Its script keeps only digests of code that gives the same numbers today. A part whose numbers
    have changed on purpose leaves the table.
    """
    stale = [name for name, known in digests._same_code().items() if known[0] != at_hand(name)]
    assert not stale, "type: python -m benchmarks digests --write (--changed PART drops a part)"


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
            f"from dynabro_cli.components.aggregators._order import middle_mean\nbody = {body}"
        )
        found.append(digests.of_entry(entry(rules, monkeypatch)))
        files = digests._with_imports(rules)
        ours = {
            COMPONENTS / "aggregators" / name for name in ("_order.py", "_kernels/order_kernel.py")
        }
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
    monkeypatch.setattr(digests, "_files", lambda: (frozenset(), frozenset()))
    assert digests.of_engine.__wrapped__() is None
    assert digests._registered.__wrapped__() == {}


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


@each_row(
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
