"""Modules that are loaded when something of them is first used."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dynabro_cli.core.lazy import Late, deferred, when_loaded

SLOW = """
import sys, time
loads = globals().get("loads", 0) + 1
from slowpackage import part
from slowpackage.part import VALUE
asked_early = hasattr(sys.modules["slowpackage"], "later")
time.sleep(0.05)
later = 1

def __getattr__(name):
    if name == "made":
        return "late"
    raise AttributeError(name)
"""


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package that is deferred."""
    folder = tmp_path / "slowpackage"
    folder.mkdir()
    (folder / "__init__.py").write_text(SLOW)
    (folder / "part.py").write_text("VALUE = 3\nloads = globals().get('loads', 0) + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield deferred("slowpackage")
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowpackage"]:
        del sys.modules[name]


def test_nothing_is_loaded_before_something_is_used(slow: ModuleType) -> None:
    assert "slowpackage" not in sys.modules
    assert slow.later == 1
    assert sys.modules["slowpackage"] is slow
    assert not slow.asked_early  # type: ignore[attr-defined]


def test_once_loaded_it_is_a_plain_module(slow: ModuleType) -> None:
    assert slow.loads == 1
    plain = importlib.util.find_spec("slowpackage.part")
    assert type(slow) is ModuleType
    assert slow.__spec__ is not None
    assert plain is not None
    assert type(slow.__spec__.loader) is type(plain.loader)
    assert slow.__loader__ is slow.__spec__.loader
    assert slow.__file__ is not None
    assert list(slow.__path__) == [str(Path(slow.__file__).parent)]
    assert slow.made == "late"  # of the module's own __getattr__
    with pytest.raises(AttributeError):
        slow.nothing  # noqa: B018
    assert importlib.reload(slow) is slow
    assert slow.loads == 2


@pytest.mark.parametrize(
    "statement", ["import slowpackage", "import slowpackage.part", "from slowpackage import later"]
)
def test_an_import_elsewhere_loads_the_same_module_once(slow: ModuleType, statement: str) -> None:
    exec(statement, {})
    assert sys.modules["slowpackage"] is slow
    assert type(slow) is ModuleType
    assert (slow.loads, slow.part.loads) == (1, 1)


def test_a_deferred_submodule_is_loaded_with_its_package(slow: ModuleType) -> None:
    part = deferred("slowpackage.part")
    assert slow.VALUE == 3
    assert slow.part is part is sys.modules["slowpackage.part"]
    assert (slow.loads, part.loads) == (1, 1)


def test_a_submodule_that_is_used_first_loads_its_package(slow: ModuleType) -> None:
    part = deferred("slowpackage.part")
    assert part.VALUE == 3
    assert sys.modules["slowpackage"] is slow
    assert (slow.loads, part.loads) == (1, 1)


def test_threads_wait_for_the_one_that_loads(slow: ModuleType) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(slow.later)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    assert slow.loads == 1


def test_what_waits_is_done_once_in_order(slow: ModuleType) -> None:
    done: list[object] = []
    when_loaded(slow, lambda: done.append("first"))
    when_loaded(slow, lambda: done.append(slow.later))
    assert done == []
    assert slow.later == 1
    assert done == ["first", 1]
    when_loaded(slow, lambda: done.append("at once"))
    assert done == ["first", 1, "at once"]


def test_a_module_that_cannot_be_loaded_says_so_each_time(slow: ModuleType, tmp_path: Path) -> None:
    broken = tmp_path / "slowpackage" / "__init__.py"
    broken.write_text("raise RuntimeError('not today')")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not today"):
            slow.later  # noqa: B018
    broken.write_text(SLOW)
    importlib.invalidate_caches()
    assert slow.later == 1


def test_a_module_that_is_not_there() -> None:
    before = list(sys.meta_path)
    missing = deferred("no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        missing.anything  # noqa: B018
    sys.meta_path[:] = before


def test_what_is_loaded_already_is_itself() -> None:
    assert deferred("threading") is threading
    first = deferred("not_there_either")
    assert deferred("not_there_either") is first
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if getattr(finder, "_module", None) is not first
    ]


@pytest.mark.thorough
def test_torch_is_what_a_plain_import_makes() -> None:
    program = """
import sys
from dynabro_cli.core.lazy import nn, torch
from dynabro_cli.components.aggregators.mda import torch as of_mda
assert not any(name.partition(".")[0] == "torch" for name in sys.modules)
assert float(torch.ones(3).sum()) == 3
import torch.nn.functional, types
assert sys.modules["torch"] is torch is of_mda and sys.modules["torch.nn"] is nn is torch.nn
assert type(torch) is types.ModuleType is type(nn)
assert torch.__spec__.loader.__class__.__name__ == "SourceFileLoader"
class Model(nn.Module):
    pass
print(Model.__mro__[1] is torch.nn.Module)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "True\n"


def test_numpy_is_what_a_plain_import_makes() -> None:
    program = """
import sys
from dynabro_cli.core.lazy import np
from dynabro_cli.core.streams import Streams, np as of_streams
assert "numpy" not in sys.modules
drawn = Streams(3).generator("participation", 1).random()
import numpy, numpy.linalg, types
assert sys.modules["numpy"] is numpy is np is of_streams
assert type(np) is types.ModuleType
print(isinstance(np.arange(3), numpy.ndarray), 0 <= drawn < 1)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "True True\n"


def test_a_late_mapping_is_made_once_when_it_is_read() -> None:
    made = []
    state = Late(lambda: made.append(1) or {"tick": 0})  # type: ignore[func-returns-value]
    assert not made
    assert state == {"tick": 0}
    assert dict(state) == {"tick": 0}
    assert ("tick" in state, "else" in state, len(state), made) == (True, False, 1, [1])
