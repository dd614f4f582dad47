"""Resources of a Ray cluster's nodes that each run takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynabro_cli.core.errors import SpecError
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import Options
from dynabro_cli.runs.executors.placement import FILLING, WITHOUT_MPS, Demand


@dataclass(frozen=True)
class Share:
    """Resources of a run on a node."""

    cpus: int
    gpus: float

    @property
    def device(self) -> str:
        """Device of a run; Ray shows a process no GPU but its own."""
        return "cuda:0" if self.gpus else "cpu"

    def fit(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of runs that fit the live nodes, as ``ray.nodes`` describes them."""
        return sum(self._on(node["Resources"]) for node in nodes if node["Alive"])

    def _on(self, resources: Mapping[str, float]) -> int:
        by_cpu = resources.get("CPU", 0) / self.cpus
        by_gpu = resources.get("GPU", 0) * round(1 / self.gpus) if self.gpus else math.inf
        return int(min(by_cpu, by_gpu))


def share_of(
    options: Options,
    nodes: Sequence[Mapping[str, Any]],
    runs: Sequence[Run],
    demand: Callable[[Run], Demand],
) -> Share:
    """Return the resources of each run; raise SpecError if no node has as much, unless the cluster
    can grow.
    """
    having = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = any(resources.get("GPU", 0) >= 1 for resources in having)
    if options.device == "cuda" and not gpus:
        raise SpecError("device=cuda: the Ray cluster has no GPU. Try: --device auto")
    on_gpu = [demand(run) for run in runs if demand(run).gpu] if gpus else []
    usual = FILLING if any(task.fills for task in on_gpu) else WITHOUT_MPS
    share = Share(options.threads or 1, 1 / (options.jobs_per_gpu or usual) if on_gpu else 0.0)
    if not share.gpus and any(run.spec.precision == "tf32" for run in runs):
        raise SpecError(
            "precision=tf32: TensorFloat-32 needs a CUDA GPU; the runs would be made on CPUs"
        )
    if not share.fit(nodes) and options.jobs is None:
        most = max((resources.get("CPU", 0) for resources in having), default=0)
        raise SpecError(
            "no node of the Ray cluster has room for a run with "
            f"threads={share.cpus}{' and a GPU' if share.gpus else ''}; "
            f"the largest has {most:g} CPUs. Try: a smaller --threads, or --jobs N for a "
            "cluster that grows when asked for N"
        )
    return share
