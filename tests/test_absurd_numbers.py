"""Numbers that no run can have: every field and every parameter of every component answers with
lines, or is a run.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynabro_cli.components import Entry
from dynabro_cli.errors import SpecError
from dynabro_cli.experiment.resolve import REGISTRIES, resolve
from dynabro_cli.experiment.spec import COMPONENTS, MOST_WORKERS, RunSpec, fields

ABSURD = (
    *("0", "-1", "1", "1e6", "1e9", str(2**62), str(2**63), "1e18", "1e300", "1e308"),
    *("1e-300", "5e-324", "0.9999999999999999", "nan", "inf", "9" * 5000),
)
GIVEN = {
    "file": "s.csv",
    "name": "pictures",
    "K": "5",
    "D": "3",
    "p": "0.1",
    "delta_max": "0.4",
    "tau": "1",
    "c": "1",
}
"""Parameters that have no default; 0.5 for the others."""
FIELDS = {registry: field for field, registry in COMPONENTS.items()}
ENTRIES = [
    (FIELDS[kind], entry)
    for kind, registry in REGISTRIES.items()
    for entry in registry.entries().values()
]
NUMBERS = [name for name, info in fields().items() if info.type in (int, float)]


@pytest.fixture(autouse=True)
def _schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.csv").write_text("tick,byzantine\n0,1 2\n")
    monkeypatch.chdir(tmp_path)


def text_of(entry: Entry[object], **values: str) -> str:
    """A component with the parameters that it needs, and some values."""
    needed = {info.key: GIVEN.get(info.key, "0.5") for info in entry.infos if info.required}
    return f"{entry.name}:" + ",".join(f"{key}={value}" for key, value in (needed | values).items())


def written(entry: Entry[object]) -> Iterator[str]:
    """The component with each of its numbers at each absurd value."""
    for info in entry.infos:
        if info.type is not str:
            yield from (text_of(entry, **{info.key: value}) for value in ABSURD)


@contextlib.contextmanager
def nothing_large(most: float = 50e6) -> Iterator[None]:
    """Limit the bytes that Python and NumPy use while the context is entered."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


def answer(**values: str) -> list[str]:
    """Resolve a run; return what is wrong with it."""
    try:
        assert resolve(RunSpec.from_text(values)).key
    except SpecError as error:
        return [line for problem in error.problems for line in problem.split("\n")]
    return []


@pytest.mark.parametrize("name", NUMBERS)
def test_fields(name: str) -> None:
    with nothing_large(300e6):  # a million workers are legal
        for value in ABSURD:
            assert len(answer(**{name: value})) <= 5


@pytest.mark.parametrize(
    ("field", "entry"), ENTRIES, ids=[f"{field}-{entry.name}" for field, entry in ENTRIES]
)
def test_parameters(field: str, entry: Entry[object]) -> None:
    with nothing_large():
        for text in written(entry):
            assert len(answer(**{field: text})) <= 5
            if "aggregator" in field:
                assert len(answer(**{field: text}, byzantine="2")) <= 5


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("field", "entry"), ENTRIES, ids=[f"{field}-{entry.name}" for field, entry in ENTRIES]
)
def test_many_workers(field: str, entry: Entry[object]) -> None:
    task = {} if field in ("task", "model", "data") else {"task": "quadratic"}
    with nothing_large():
        for byzantine in ("2", "40000"):
            values = task | {
                field: text_of(entry).rstrip(":"),
                "workers": "100000",
                "byzantine": byzantine,
            }
            assert len(answer(**values)) <= 5


def test_more_workers_than_a_run_may_have() -> None:
    assert answer(workers=str(MOST_WORKERS + 1)) == [
        (
            "workers=1000001 is not legal. Try: --workers with a whole number >= 1 and <= 1000000 "
            "or auto"
        )
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "values",
    [
        {
            "task": "quadratic",
            "lr_drop": ",".join(f"0.{place:06}:0.5" for place in range(1, 50_000)),
        },
        {"task": "quadratic:dimension=50000,start=" + ":".join(["1"] * 50_000)},
        {"task": "quadratic", "pre_aggregators": "+".join(["clipping:c=1"] * 5000)},
        {"attack": "mixed:parts=" + "/".join(["sf"] * 30_000)},
        {"aggregator": "x" * 100_000},
        {"method": "sgd:" + ",".join(f"a{place}=1" for place in range(300))},
        {"aggregator": "mda", "workers": "20000", "byzantine": "8000"},
        {"pre_aggregators": "bucketing:s=1000000000000", "byzantine": "2"},
    ],
    ids=lambda values: ",".join(values),
)
def test_long_texts_and_large_counts(values: dict[str, str]) -> None:
    with nothing_large():
        answer(**values)


def test_what_these_are_told() -> None:
    (line,) = answer(aggregator="mda", workers="20000", byzantine="8000")
    assert "have more than 1000000000000000 subsets of 12000" in line
    assert line.endswith("up to 500000. Try: 'mda:f=1'")
    assert answer(attack="fang-krum:threshold=5e-324", byzantine="7") == []
    (line,) = answer(attack="mixed:parts=" + "/".join(["sf"] * 101))
    assert line == "attack 'mixed': parts= has 101 attacks. Try: 100 or fewer, joined by /"
    (line,) = answer(pre_aggregators="bucketing:s=1000000000000", byzantine="2")
    assert line.endswith("could be in half of them. Try: 'bucketing:s=4'")
