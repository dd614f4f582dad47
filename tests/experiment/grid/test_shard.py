"""Shards of a sweep: disjoint, together the whole, and stable when the sweep grows."""

from __future__ import annotations

import pytest

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.grid.plan import Shard, only, plan
from dynabro_cli.experiment.grid.sweep_file import parse_sweep
from tests.tables import each_row

SWEEP = """
name: grown
base: {task: quadratic, budget: 20}
grid: {method: [sgd, momentum], switching: [static, periodic:K=5]}
"""


def keys(text: str, shard: Shard | None = None) -> list[str]:
    planned = plan(parse_sweep(text, "grown.yaml"))
    return [run.key for run in (planned if shard is None else only(planned, shard)).runs]


@each_row("count", [1, 2, 3, 4, 40])
def test_shards_are_disjoint_and_together_the_whole_in_its_order(count: int) -> None:
    whole = keys(SWEEP + "seeds: 0..4")
    parts = [keys(SWEEP + "seeds: 0..4", Shard(number, count)) for number in range(1, count + 1)]
    assert sum(len(part) for part in parts) == len(whole) == 20
    assert {key for part in parts for key in part} == set(whole)
    assert all(part == [key for key in whole if key in part] for part in parts)
    assert count == 1 or max(map(len, parts)) < len(whole)


def test_a_run_stays_in_its_shard_when_the_sweep_grows() -> None:
    grown = (
        SWEEP.replace("[sgd, momentum]", "[dynabro, momentum:beta=0.5, sgd, momentum]")
        + "seeds: 0..4"
    )
    for number in (1, 2, 3):
        before = keys(SWEEP + "seeds: [3]", Shard(number, 3))
        assert set(before) == set(keys(grown, Shard(number, 3))) & set(keys(SWEEP + "seeds: [3]"))


def test_the_shard_of_a_key_is_a_promise() -> None:
    key = "00" * 31 + "0b"  # 11
    assert [count for count in range(1, 13) if Shard(11 % count + 1, count).has(key)] == list(
        range(1, 13)
    )
    assert [number for number in range(1, 5) if Shard(number, 4).has(key)] == [4]


@pytest.mark.parametrize("text", ["2/4", "1/1", "100000/100000"])
def test_legal_texts(text: str) -> None:
    assert Shard.parse(text).text == text


@each_row(
    "text",
    ["", "2", "0/4", "5/4", "1/0", "1/4/2", "a/b", "1/100001", "\u0661/4"],
)
def test_texts_that_are_refused(text: str) -> None:
    with pytest.raises(
        SpecError, match=r"shard=.*: it must be NUMBER/COUNT, counted from 1\. Try: --shard 1/4"
    ):
        Shard.parse(text)
