"""Digests of single files: what changes them and what does not, in every version of Python; what is remembered."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path

import pytest

from dynabro_cli.components import source_files
from dynabro_cli.components.source_files import SourceReader, read_source

RULE = '''
"""A module."""

import torch
from dynabro_cli.aggregators._order import middle_mean, nearest_mean as nearest
from . import _near
from .._far import far

if TYPE_CHECKING:
    from dynabro_cli.spec import RunSpec


@dataclass(frozen=True)
class Parameters:
    """Block."""

    f: int | None = parameter(None, minimum=0, help="Byzantine workers")


@REGISTRY.register("my-rule", Parameters, reference="nobody, 2020")
def my_rule(parameters, setting):
    """Rule.

    Two lines.
    """
    text = f"{setting!r:>{parameters.f}} and" " more"
    return text, [1.0, 0x10, 1_000], (text,), -1, lambda m: m[..., None]
'''


def digest(text: str) -> str:
    return read_source(textwrap.dedent(text).encode()).digest


SAME = {
    "comments": ("import torch\n", "import torch  # for tensors\n\n\n"),
    "a module's docstring": ('"""A module."""\n', '"""Another."""\n'),
    "no docstring at all": ('    """Block."""\n\n', ""),
    "a function's docstring": ("    Two lines.\n", "    Three.\n\n    Lines.\n"),
    "quotes": ('"my-rule"', "'my-rule'"),
    "lines": ("middle_mean, nearest_mean as nearest", "(\n    middle_mean,\n    nearest_mean as nearest,\n)"),
    "parentheses": ("return text, [", "return (text), ["),
    "how numbers are written": ("[1.0, 0x10, 1_000]", "[1e0, 16, 1000]"),
    "an f-string in parts": ('and" " more"', 'and more"'),
    "help": ('help="Byzantine workers"', 'help="how many are Byzantine"'),
    "reference": ('reference="nobody, 2020"', 'reference="somebody, 2021"'),
}
OTHER = {
    "a number": ("1_000", "1_001"),
    "an integer for a float": ("[1.0,", "[1,"),
    "a sign": ("-1,", "1,"),
    "a tuple": ("(text,)", "(text)"),
    "a default": ("minimum=0", "minimum=1"),
    "an order": ("setting!r:>{parameters.f}", "parameters.f!r:>{setting}"),
    "a conversion": ("setting!r", "setting!s"),
    "an import": ("from .._far import far", "from .._near import far"),
    "a name": ('"my-rule"', '"my-other-rule"'),
    "a text that is used": (" and", " or"),
    "another function's help": ('help="Byzantine workers"', 'helper="Byzantine workers"'),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_only_written_differently_has_the_same_digest(name: str) -> None:
    before, after = SAME[name]
    assert RULE.count(before) == 1
    changed = RULE.replace(before, after)
    assert ast.parse(changed)
    assert digest(changed) == digest(RULE)


@pytest.mark.parametrize("name", OTHER)
def test_what_says_another_thing_has_another_digest(name: str) -> None:
    before, after = OTHER[name]
    assert RULE.count(before) == 1
    assert digest(RULE.replace(before, after)) != digest(RULE)


FIRST_NAMES = """
from pathlib import Path
from dynabro_cli import __version__, events, plugins
from dynabro_cli.components import parameter
from dynabro_cli.errors import SpecError
from dynabro_cli.footprint import of_pairs
from dynabro_cli.host_memory import free_host_memory
from torch import Tensor
"""
MOVED = """
from pathlib import Path
from dynabro_cli import __version__, events
from dynabro_cli.components import parameter, plugins
from dynabro_cli.components.footprint import of_pairs
from dynabro_cli.errors import SpecError
from dynabro_cli.machine.host_memory import free_host_memory
from torch import Tensor
"""


def test_imports_of_moved_modules_count_under_the_first_name() -> None:
    assert digest(MOVED) == digest(FIRST_NAMES)
    assert digest(MOVED.replace("of_pairs", "of_order")) != digest(FIRST_NAMES)
    assert digest(MOVED.replace("machine.host_memory", "machine.settings")) != digest(FIRST_NAMES)


PLAIN = """
import math

import numpy as np

from dynabro_cli.components import parameter
from dynabro_cli.lazy import torch

def made():
    import numpy as np
    return np.zeros(3)
"""
LATE = """
import math

from dynabro_cli.components import parameter
from dynabro_cli.deferred import np
from dynabro_cli.lazy import torch

def made():
    from dynabro_cli.deferred import np
    return np.zeros(3)
"""


def test_a_late_import_counts_as_the_plain_one() -> None:
    assert digest(LATE) == digest(PLAIN)
    assert digest(LATE.replace("import torch", "import nn")) == digest(PLAIN.replace("import torch", "import nn"))
    assert digest(LATE.replace("from dynabro_cli.deferred import np\n", "", 1)) != digest(PLAIN)
    assert digest(LATE.replace("import np", "import np, when_loaded")) != digest(PLAIN)


def test_digests_are_the_same_in_every_version_of_python() -> None:
    """What Python 3.11 made of it; other versions have other fields in their trees, and other texts of f-strings."""
    assert digest(RULE) == "5bc56f8a108f1034"


def test_what_newer_trees_have_besides_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[str] = []
    source_files._write(ast.parse(RULE), expected)
    tree = ast.parse(RULE)
    for kind in (ast.FunctionDef, ast.ClassDef):
        monkeypatch.setattr(kind, "_fields", (*kind._fields, "news"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.news = []  # type: ignore[attr-defined]
        if isinstance(node, ast.JoinedStr):
            node.values.append(ast.Constant(""))
    parts: list[str] = []
    source_files._write(tree, parts)
    assert parts == expected


def test_imports_and_names() -> None:
    source = read_source(RULE.encode())
    assert source.registers == ("my-rule",)
    assert source.imports == (
        *(".", ".._far", ".._far.far", "._near"),
        *("dynabro_cli.aggregators._order", "dynabro_cli.aggregators._order.middle_mean"),
        *("dynabro_cli.aggregators._order.nearest_mean", "torch"),
    )


@pytest.mark.parametrize("content", [b"def", b"\0", b"\xff\xfe", b"(" * 10_000, b"-" * 100_000 + b"1", b"x = " + b"9" * 9999])
def test_what_cannot_be_read_is_unknown(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_bytes(content)
    reader = SourceReader(tmp_path / "memory.json")
    assert reader.source(tmp_path / "broken.py") is None
    assert reader.source(tmp_path / "missing.py") is None
    assert reader.source(tmp_path) is None


def test_what_is_known_is_remembered_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, file = tmp_path / "cache" / "memory.json", tmp_path / "rule.py"
    file.write_text(RULE)
    reader = SourceReader(memory)
    source = reader.source(file)
    reader.remember()
    assert [item.name for item in memory.parent.iterdir()] == ["memory.json"]
    with monkeypatch.context() as without:
        without.setattr(source_files, "read_source", None)  # whoever calls it fails
        assert SourceReader(memory).source(file) == source
    file.write_text(RULE.replace("1_000", "1_001"))
    assert SourceReader(memory).source(file) != source


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": [1]}', "\x00", "[" * 100_000, "null"])
def test_a_damaged_memory_is_not_believed(content: str, tmp_path: Path) -> None:
    memory, file = tmp_path / "memory.json", tmp_path / "rule.py"
    memory.write_text(content)
    file.write_text(RULE)
    reader = SourceReader(memory)
    assert reader.source(file) == read_source(RULE.encode())
    reader.remember()
    assert len(json.loads(memory.read_text())) == 1


def test_a_memory_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "rule.py").write_text(RULE)
    reader = SourceReader(tmp_path / "file" / "memory.json")
    assert reader.source(tmp_path / "rule.py") == read_source(RULE.encode())
    reader.remember()


def test_the_memory_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MOST_REMEMBERED", 3)
    memory, file = tmp_path / "memory.json", tmp_path / "rule.py"
    for number in range(5):
        file.write_text(f"x = {number}")
        reader = SourceReader(memory)
        reader.source(file)
        reader.remember()
    assert len(json.loads(memory.read_text())) == 3
