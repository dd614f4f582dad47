"""A Ray cluster of two nodes on this machine, whose tasks and nodes are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.processes import children, command_line

ROOT = Path(__file__).parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 10,
}
"""A lost node is noticed after some seconds."""


class Nodes:
    """Two nodes of one CPU each.

    Attributes:
        address: Of the cluster.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._second = cluster.add_node(**NODE)
        self.address: str = cluster.address

    def tasks(self) -> list[int]:
        """The processes that are making runs."""
        raylets = [
            info.process.pid
            for node in self._cluster.list_all_nodes()
            for info in node.all_processes.get("raylet", ())
        ]
        return [
            pid
            for raylet in raylets
            for pid in children(raylet)
            if command_line(pid).startswith(b"ray::make")
        ]

    def kill_task(self, chance: random.Random) -> None:
        """Kill one of the processes that are making runs, if there is any."""
        if tasks := sorted(self.tasks()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(tasks), signal.SIGKILL)

    def lose_one(self) -> None:
        """Kill the second node, with all that runs on it."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = None

    def repair(self) -> None:
        """Have two nodes again."""
        if self._second is None:
            self._second = self._cluster.add_node(**NODE)


@contextlib.contextmanager
def two() -> Iterator[Nodes]:
    """Start the cluster, and stop it in the end."""
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)  # of the nodes
    try:
        cluster = Cluster(
            initialize_head=True,
            head_node_args=NODE | {"include_dashboard": False, "_system_config": SOON},
        )
        try:
            yield Nodes(cluster)
        finally:
            cluster.shutdown()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
