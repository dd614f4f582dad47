"""A rule and its state, for the ranks of a process group."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.api import (
    COMPUTED_IN,
    BoundAggregator,
    BoundPreAggregator,
    aggregator_setting,
)
from dynabro_cli.components.pre_aggregators._chain import split_chain, weights_of
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.vectors.finite import sound
from dynabro_cli.core.vectors.gram import central, gram, unit
from dynabro_cli.core.vectors.means import mixed, weighted

SAMPLE = 256
"""Coordinates of a rank's part, from which ``suspects`` are found."""
SAME_DIRECTION = 1e-4
"""Relative singular value under which messages count as dependent when weights are estimated."""
# the second name is deprecated since torch 2.14
gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Exchange(NamedTuple):
    """Messages on their way to the ranks that aggregate a part of them.

    Attributes:
        work: Ends when the messages are here.
        rows: The messages of all ranks, in this rank's coordinates, [m, n].
        whole: Memory for all coordinates, with zeros at the end up to m n.
        vector: The caller's vector [d], d <= m n; it shares the memory if d = m n.
        done: Gets the vector, when it has the result.
    """

    work: Any
    rows: Tensor
    whole: Tensor
    vector: Tensor
    done: Future[Tensor]


class RobustState:
    """A rule for the ranks of a process group, with what the rule remembers.

    The ranks of the group are the workers, in their order. All of them must make the same calls in
    the same order.

    Args:
        rule: Such as ``cwtm``, ``cwtm:f=1`` or ``nnm+gm``, as everywhere in dynabro.
        byzantine: The declared number f of Byzantine ranks, 2f < m.
        seed: The seed of random draws, equal on all ranks; for rules that draw.
        threshold: T^0 of Algorithm 2, for ``mfm`` without a threshold.
        process_group: The ranks; None for all.

    Attributes:
        text: The rule as text.
        rule: The chain of pre-aggregators and rule.
        byzantine: f.
        group: The process group.
        ranks: m.
        mode: How messages are exchanged. "coordinates": each rank aggregates a share of the
            coordinates, with the same numbers as on one machine. "gram": also, but the weights of
            whole messages come from their Gram matrix, which is the sum of the ranks' matrices, so
            results differ by rounding. "gathered": each rank gets all messages, because the rule
            needs them. This takes m times the memory, and m/2 times the traffic of an all-reduce.

    Raises:
        SpecError: There is no process group, the text is not legal, or the rule is not defined for
            m and f.
    """

    def __init__(
        self,
        rule: str,
        *,
        byzantine: int,
        seed: int = 0,
        threshold: float | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise SpecError(
                "process_group=None: torch.distributed is not initialised. Try: "
                "torch.distributed.init_process_group('gloo'), and start with torchrun"
            )
        self.text, self.group, self.ranks = rule, process_group, dist.get_world_size(process_group)
        setting = aggregator_setting(self.ranks, byzantine, seed, threshold)
        self.byzantine = setting.byzantine
        if not 0 <= 2 * self.byzantine < self.ranks:
            raise SpecError(
                f"byzantine={byzantine}: fewer than half of {self.ranks} ranks may be Byzantine. "
                f"Try: byzantine={(self.ranks - 1) // 2}, or {2 * abs(self.byzantine) + 1} ranks"
            )
        self._whole = BoundAggregator(rule, setting)
        self.rule = self._whole._rule
        self._identity = {"rule": rule, **vars(setting)}
        *before, last = split_chain(rule) or [rule]
        stages = BoundPreAggregator("+".join(before) or "none", setting)
        setting = dataclasses.replace(setting, workers=stages.workers)
        self._stages = stages._stages
        self._last: Aggregator = REGISTRIES["aggregators"].parse(last).build(setting)
        parts = (*self._stages, self._last)
        self._weighs, self.mode = all(part.weigh for part in parts), "gathered"
        if all(part.coordinatewise for part in parts):
            self._weighs, self.mode = False, "coordinates"
        elif all(part.coordinatewise or part.weigh for part in parts):
            self.mode = "gram"
        else:
            logging.getLogger(__name__).info("%s: every rank gets all messages", rule)
        self._calls, self._lost = 0, torch.zeros(self.ranks + 1, dtype=torch.float64)
        self._samples: list[Tensor] = []
        self.open: list[Exchange] = []

    def aggregate(
        self, vector: Tensor, computations: int | Tensor = 1, server: Tensor | None = None
    ) -> Tensor:
        """Return the aggregate [d] of the ranks' vectors [d], in their type, equal on all ranks.

        A rank whose vector has a NaN or an Inf counts as Byzantine: zeros replace its vector. If no
        vector is finite, the aggregate is NaN. Half-precision vectors travel as they are, and are
        computed in single precision.

        Args:
            vector: This rank's vector; its length and type are the same on all ranks.
            computations: The number of mini-batches of which each vector is the mean, for ``mfm``.
            server: The trusted gradient [d], equal on all ranks, for ``fltrust``.

        Raises:
            ValueError: The vector is not floating-point numbers [d], the rule needs ``server``, or
                the vector does not fit the vectors that the rule remembers.
        """
        result = vector.detach().clone()
        self.aggregate_(result, computations, server)
        return result

    @torch.no_grad()
    def aggregate_(
        self, vector: Tensor, computations: int | Tensor = 1, server: Tensor | None = None
    ) -> None:
        """Like ``aggregate``, but write the result into ``vector``, which is contiguous."""
        if vector.ndim != 1 or vector.dtype not in COMPUTED_IN:
            raise SpecError(
                f"vector={vector.dtype} {list(vector.shape)}: expected floating-point numbers [d]. "
                "Try: vector.flatten().float()"
            )
        if not len(vector):
            return
        if self.mode == "gathered":
            messages = vector.new_empty(self.ranks, len(vector))
            gather(messages.view(-1), vector, group=self.group)
            result = self._whole(messages, computations, server)
            self._sample(messages, result, len(vector))
            vector.copy_(result)
            self.end_call()
        else:
            exchange = self.start(vector)
            self.close(exchange, computations)
            self.end_call()
            exchange.done.wait()

    def start(self, vector: Tensor) -> Exchange:
        """Start to send the coordinates of a vector [d] to the ranks that aggregate them."""
        clean, finite = sound(vector[None])
        if finite is not None:  # a NaN is now everywhere, so that every rank sees it in its part
            vector.copy_(clean[0])
        size, rest = -(-len(vector) // self.ranks), -len(vector) % self.ranks
        whole = torch.nn.functional.pad(vector, (0, rest)) if rest else vector
        rows = vector.new_empty(self.ranks, size)
        work = dist.all_to_all_single(rows.view(-1), whole, group=self.group, async_op=True)
        done: Future[Tensor] = Future(devices=[vector.device] * vector.is_cuda)
        return Exchange(work, rows, whole, vector, done)

    def close(self, exchange: Exchange, computations: int | Tensor = 1) -> None:
        """Aggregate this rank's part of an exchange, and start to send it to all."""
        work, rows, whole, vector, done = exchange
        work.wait()
        rows = sound(rows.to(COMPUTED_IN[rows.dtype]))[0]
        # as on one machine, where a chain of weights makes one mean of the messages
        if self._weighs:
            part = weighted(rows, weights_of(self._stages, self._last, self._products(rows)))
        else:
            part = self._in_stages(rows, computations)
        start = dist.get_rank(self.group) * len(part)
        self._sample(rows, part, min(len(part), max(0, len(vector) - start)))
        sent: Any = gather(whole, part.to(vector.dtype), group=self.group, async_op=True)

        def end(future: Future[Any]) -> None:
            try:
                future.wait()
                done.set_result(vector if whole is vector else vector.copy_(whole[: len(vector)]))
            except RuntimeError as error:  # of the process group
                done.set_exception(error)  # type: ignore[arg-type]

        sent.get_future().then(end)

    def _in_stages(self, rows: Tensor, computations: int | Tensor) -> Tensor:
        for place, stage in enumerate(self._stages):
            if stage.weigh is not None:
                products = self._products(rows)
                rows = mixed(rows, stage.weigh(products), central(products))
            else:  # in an order that the call's number draws
                call = torch.tensor(self._calls * len(self._stages) + place, device=rows.device)
                rows = stage.mix(rows, call) if stage.numbered else stage.mix(rows)
        if self._last.weigh and not self._last.coordinatewise:
            return weighted(rows, self._last.weigh(self._products(rows)))
        part: Tensor = self._last.aggregate(rows, {}, computations)[0]
        return part

    def _products(self, rows: Tensor) -> Tensor:
        """Return the Gram matrix [k, k] of whole vectors, from this rank's coordinates [k, n].

        The matrices are added up in the same order on all ranks, so that all decide alike. Each may
        be around another centre: together, these are one centre.
        """
        mine = torch.cat([gram(rows).flatten(), unit(rows).view(1)])
        every = mine.new_empty(self.ranks, len(mine))
        gather(every.view(-1), mine, group=self.group)
        squares = (every[:, -1:] / every[:, -1].amax()).square()
        total: Tensor = (every[:, :-1] * squares).sum(0)
        return total.view(len(rows), -1)

    def _sample(self, rows: Tensor, result: Tensor, columns: int) -> None:
        """Keep the messages and the result in some columns; others in the next call."""
        step = max(1, columns // SAMPLE)
        some = slice(self._calls % step, columns, step)
        self._samples.append(torch.cat([rows[:, some], result[None, some]]).double())

    def end_call(self) -> None:
        """Count the call, and add up what the ranks know for ``suspects``."""
        sample = torch.cat(self._samples, 1)
        lost = self._lost_in(sample[:-1], sample[-1])
        total = torch.cat([lost.nansum(1), lost[:1].isfinite().sum(1)])
        dist.all_reduce(total, group=self.group)
        self._lost, self._samples = self._lost.to(total.device) + total, []
        self._calls += 1

    @torch.enable_grad()
    def _lost_in(self, rows: Tensor, result: Tensor) -> Tensor:
        """Return the share of each message that was cut off, [m, k], in the sampled columns."""
        if self.mode == "coordinates" and rows.numel():
            rows.requires_grad_()
            (slopes,) = torch.autograd.grad(self._in_stages(rows, 1).sum(), rows)
            unused = (slopes == 0).double()
            return torch.where(unused.all(0), torch.nan, unused)
        rows = sound(rows)[0].nan_to_num()
        sizes = rows.norm(dim=1, keepdim=True)
        sizes[sizes == 0] = torch.inf
        weights = (result @ torch.linalg.pinv(rows / sizes, rtol=SAME_DIRECTION))[:, None] / sizes
        lost: Tensor = (1 - self.ranks * weights).clamp(0, 1)
        return lost.expand_as(rows)

    def suspects(self, reset: bool = False) -> list[float]:
        """Return for each rank the share of its message that was cut off, in [0, 1], as a mean over
        the calls since the last reset; equal on all ranks, and nothing is sent.

        It is estimated from a sample of the coordinates. Mode "coordinates": the share of a rank's
        coordinates on which the aggregate does not depend. Of an honest rank, ``cwtm`` cuts off
        about 2f/m, ``cwmed`` (m - 1)/m or (m - 2)/m, and ``mean`` 0; Byzantine ranks have more.
        Other modes: max(0, 1 - m w) with w the weight of the rank's message in the aggregate, found
        by least squares, so that rules that do not return a weighted mean are only approximated.
        NaN: nothing is known, as for ``sign-majority``, or before the first call.
        """
        shares: list[float] = (self._lost[:-1] / self._lost[-1]).tolist()
        if reset:
            self._lost = torch.zeros_like(self._lost)
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later process needs to go on; equal on all ranks, so one may save it
        for all.
        """
        remembered = {"calls": self._calls, "state": self._whole._state, "lost": self._lost}
        return self._identity | remembered

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the ``RobustState`` from which ``state_dict`` was taken, on any rank.

        Raises:
            SpecError: The rule, f, the seed or the number of ranks differ.
        """
        for name, value in self._identity.items():
            if state[name] != value:
                raise SpecError(
                    f"{name}={value!r}: the saved state has {name}={state[name]!r}. Try: a "
                    f"RobustState with {state[name]!r}"
                )
        self._calls, self._lost = state["calls"], state["lost"]
        self._whole._state = dict(state["state"])

    @property
    def remembers(self) -> bool:
        """True if the next result depends on earlier calls."""
        return bool(self._whole._state) or any(stage.numbered for stage in self._stages)
