"""A spec in which nothing is left open."""

from __future__ import annotations

from dataclasses import dataclass

from dynabro_cli.experiment.spec import RunSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class CompleteSpec(RunSpec):
    """A RunSpec whose every field has a value; ``model`` is None for tasks that train none. ``resolve`` makes it.

    The fields here are those that a user may leave to the task, or to the other fields.
    """

    aggregator: str
    attack_entry: str
    workers: int
    byzantine: int
    budget: int
    batch_size: int
    learning_rate: float
    lr_drop: str
    weight_decay: float
    eval_every: int
