"""Digests of functions that are in no file see what the functions read by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from dynabro_cli.core.registration.interactive import digest_of

CELL = """
import threading
from functools import lru_cache
SCALE, NAMES, LOCK = 2.0, {"scale": 2, "kinds": {"a", "b", "c", "d"}}, threading.Lock()
class Base:
    kind = 1
    def deep(self): return self
class Helper(Base):
    def __init__(self, x): self.x = x
    @property
    def twice(self): return 2 * self.x
    @staticmethod
    def fixed(): return 1
    @classmethod
    def made(cls): return cls(1)
    def deep(self): return super().deep()
HELPER = Helper(3)
@lru_cache
def cached(v): return v if v < 2 else cached(v - 1)
TABLE = {"f": lambda v: v + 1}
def factory(k):
    def inner(v): return v * k
    return inner
INNER = factory(2)
UNUSED = 1
def rule(messages, *, keep=0.5):
    with LOCK:
        more = HELPER.twice * cached(1) * TABLE["f"](1) * INNER(1)
        return [row * SCALE * more for row in messages], NAMES
"""
HELPER = CELL[CELL.index("class Helper") : CELL.index("@lru_cache")]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Executes the text of a cell; returns the digest of ``rule``."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def execute(text: str) -> str:
        exec(compile(text, "<cell>", "exec"), main.__dict__)
        return digest_of(main.rule)

    return execute


@pytest.mark.parametrize(
    "edit",
    [
        "SCALE = 3.0",
        "SCALE = 2",
        "SCALE = -SCALE",
        "NAMES['scale'] = 3",
        "NAMES['kinds'].add('e')",
        "HELPER.x = 4",
        "Base.deep = lambda self: None",
        "TABLE['f'] = lambda v: v + 2",
        "INNER = factory(3)",
        "cached = lru_cache(lambda v: v)",
        HELPER.replace("return 2 *", "return 3 *"),
        HELPER.replace("fixed(): return 1", "fixed(): return 2"),
        HELPER.replace("cls(1)", "cls(2)"),
        CELL.replace("keep=0.5", "keep=0.6"),
        CELL.replace("row * SCALE", "row / SCALE"),
        CELL.replace("(self, x): self.x", "(self, x): self.y"),
    ],
)
def test_a_change_is_seen(cell: Callable[[str], str], edit: str) -> None:
    before = cell(CELL)
    assert cell(edit) != before
    assert cell(CELL) == before


@pytest.mark.parametrize(
    "edit",
    [
        "UNUSED = 2",
        "def other(): return SCALE",
        "# a comment",
        CELL.replace("    with LOCK", "    # a comment\n\n    with LOCK"),
        "SCALE = 4.0 / 2",
        "TABLE = {'f': lambda v: v + 1}",
        "NAMES = {'scale': 2, 'kinds': set('dcba')}",
        HELPER,
    ],
)
def test_what_changes_nothing_is_not_seen(cell: Callable[[str], str], edit: str) -> None:
    before = cell(CELL)
    assert cell(edit) == before


def test_another_process_finds_the_same() -> None:
    imported = "from dynabro_cli.core.registration.interactive import digest_of"
    program = f"{CELL}\n{imported}\nprint(digest_of(rule))"
    answers = [
        subprocess.run(
            [sys.executable, "-"],
            input=text,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, text in (("1", program), ("2", program), ("3", program.replace("2.0", "2.5")))
    ]
    assert answers[0] == answers[1] != answers[2]


def test_arrays_and_tensors_count_by_their_values(cell: Callable[[str], str]) -> None:
    text = "import numpy, torch\nA, T = numpy.arange(2000), torch.nn.Parameter(torch.ones(3))\n"
    text += "H, E, M = torch.ones(3, dtype=torch.bfloat16), torch.eye(3).to_sparse(), numpy\n"
    text += "def rule(messages): return messages + A.sum() + T.sum() + H.sum() + E.sum() + M.pi"
    before = cell(text)
    assert cell(text) == before
    assert cell("A[1500] = 0") != before
    assert cell(text) == before
    assert cell("T.data[2] = 0") != before
    for edit in ("H[0] = 2", "E = 2 * E", "import math; M = math"):
        assert cell(text) == before
        assert cell(edit) != before, edit


def test_values_of_many_levels_leave_the_code(cell: Callable[[str], str]) -> None:
    text = "D = []\nfor _ in range(5000): D = [D]\ndef rule(messages): return D and messages"
    before = cell(text)
    assert cell(text) == before
    assert cell(text.replace("and", "or")) != before
