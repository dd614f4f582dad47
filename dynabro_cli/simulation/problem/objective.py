"""An objective as a problem of the loop."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dynabro_cli.components.tasks._api import Objective
from dynabro_cli.core.streams import Name, Streams
from dynabro_cli.simulation.problem.interface import Draws, Problem, Relabel, Score, mean_gradients


class ObjectiveProblem(Problem):
    """An objective with additive noise, in double precision on the CPU."""

    def __init__(
        self, objective: Objective, workers: int, batch_size: int, streams: Streams
    ) -> None:
        self._objective, self._streams = objective, streams
        self._workers, self._batch_size = workers, batch_size
        self.x = objective.start.clone()
        self.buffers = self.x.new_empty(0)

    @property
    def how(self) -> dict[str, object]:
        return {"gradients": "exact gradient plus noise"}

    def draw(self, round_: int, computations: Sequence[int], workers: Tensor | None) -> Draws:
        name: Name = "server" if workers is None else "noise"
        samples = self._batch_size * (1 if workers is None else self._workers)
        return tuple(
            [
                (self._objective.noise(self._streams.moved(name, round_, number), samples), workers)
                for number in computations
            ]
        )

    def gradients(
        self, draws: Draws, total: Tensor | None, relabel: Relabel | None = None
    ) -> Tensor:
        gradient = self._objective.gradient(self.x)
        result = self.x.new_zeros(self._workers, self.x.numel()) if total is None else total
        for noise, workers in draws:
            drawn = gradient + noise.view(self._workers, self._batch_size, -1).mean(1)
            k = len(workers)
            result[:k] += drawn if k == self._workers else drawn[workers]
        return result

    def server_gradient(self, draws: Draws) -> Tensor:
        total = len(draws) * self._objective.gradient(self.x)
        for noise, _ in draws:
            total += noise.mean(0)
        return total

    def large_gradients(self, round_: int, batches: int, relabel: Relabel | None = None) -> Tensor:
        return mean_gradients(self, round_, batches, self._workers, relabel)

    def observed(self) -> None:
        return

    def graph_need(self) -> str:
        return "on a CPU"

    def project(self) -> None:
        self.x.copy_(self._objective.project(self.x))

    def evaluate(self) -> Score:
        return Score(None, None, self._objective.gap(self.x).item())

    def validate(self) -> None:
        return

    def metrics(self) -> tuple[()]:
        return ()

    def weights(self) -> dict[str, Tensor]:
        return {"x": self.x}

    def squared_gradient(self) -> Tensor:
        return self._objective.gradient(self.x).double().square().sum()
