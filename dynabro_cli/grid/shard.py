"""Shards of a sweep: parts that several machines make, each in a database of its own."""

from __future__ import annotations

import dataclasses
import re

from dynabro_cli.errors import SpecError
from dynabro_cli.grid.plan import PlannedRuns

MOST_SHARDS = 100_000


@dataclasses.dataclass(frozen=True)
class Shard:
    """Part ``number`` of ``count``, counted from 1: the runs whose key is ``number - 1`` modulo ``count``.

    A key depends on its run alone. So shards are disjoint, and a run stays in its shard when the sweep grows or shrinks.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/4``.

        Raises:
            SpecError: The text is not ``NUMBER/COUNT`` with 1 <= NUMBER <= COUNT.
        """
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        shard = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= shard.number <= shard.count <= MOST_SHARDS:
            raise SpecError(f"shard={text}: it must be NUMBER/COUNT, counted from 1. Try: --shard 1/4")
        return shard

    @property
    def text(self) -> str:
        """The shard as typed."""
        return f"{self.number}/{self.count}"

    def has(self, run_key: str) -> bool:
        """Return True if the run with this key is in the shard."""
        return int(run_key, 16) % self.count == self.number - 1


def only(planned: PlannedRuns, shard: Shard) -> PlannedRuns:
    """Return a plan with the runs of one shard; the sweep and its numbers of duplicates and exclusions stay."""
    return dataclasses.replace(planned, runs=tuple(run for run in planned.runs if shard.has(run.key)))
