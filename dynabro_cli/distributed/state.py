"""A rule and its state, for the ranks of a process group."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynabro_cli.components.aggregators._api import SERVER
from dynabro_cli.components.api import COMPUTED_IN, aggregator_setting
from dynabro_cli.components.pre_aggregators._chain import build_stages, split_chain, weights_of
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.vectors.finite import sound
from dynabro_cli.core.vectors.gram import central, gram, unit
from dynabro_cli.core.vectors.means import mixed, weighted

CHUNK = 1 << 19
"""Coordinates that are exchanged at a time, so that the rule runs while others are on their way."""
SAMPLE = 512
"""Coordinates of a call, of each rank, from which ``suspects`` are found."""
SAME_DIRECTION = 1e-4
"""Relative singular value under which messages count as dependent when weights are estimated."""

gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
# the second name is deprecated since torch 2.14


class Exchange(NamedTuple):
    """Coordinates on their way to the ranks that aggregate them.

    Attributes:
        work: Ends when the messages are here.
        rows: The messages of all ranks, in the coordinates of this rank, [m, n].
        whole: Memory for all coordinates, with zeros at the end up to m n.
        vector: The caller's coordinates [d], d <= m n; shares the memory if d = m n.
    """

    work: Any
    rows: Tensor
    whole: Tensor
    vector: Tensor


class RobustState:
    """A rule for the ranks of a process group, with the rule's state.

    The ranks of the group are the workers, in their order. All must make the same calls in the same
    order. The state is equal on all ranks.

    Args:
        rule: Such as ``cwtm``, ``cwtm:f=1`` or ``nnm+gm``, as everywhere in dynabro.
        byzantine: The declared number f of Byzantine ranks, 2f < m.
        seed: The seed of random draws, equal on all ranks; for rules that draw.
        threshold: T^0 of Algorithm 2, for ``mfm`` without a threshold.
        process_group: The ranks; None for all.

    Attributes:
        text: The rule as text.
        rule: The chain of pre-aggregators and rule.
        ranks: m, the number of ranks.
        mode: The way of the messages. "coordinates": each rank aggregates a share of the
            coordinates, which gives the same numbers as on one machine. "gram": as before, and the
            weights of whole messages come from their Gram matrix, the sum of the ranks' matrices;
            results differ by rounding. "gathered": each rank gets all messages, because the rule
            needs whole messages. This takes m times the memory, and m/2 times the traffic.

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
        if not (dist.is_available() and dist.is_initialized()):
            raise SpecError(
                "process_group=None: torch.distributed is not initialised. Try: "
                "torch.distributed.init_process_group('gloo'), and start with torchrun"
            )
        self.text, self.group, self.ranks = rule, process_group, dist.get_world_size(process_group)
        self._place = dist.get_rank(process_group)
        setting = aggregator_setting(self.ranks, byzantine, seed)
        if not 0 <= 2 * setting.byzantine < self.ranks:
            raise SpecError(
                f"byzantine={byzantine}: not legal with {self.ranks} ranks, of which more than "
                f"half must be honest. Try: byzantine={(self.ranks - 1) // 2} at most, or "
                f"{2 * abs(setting.byzantine) + 1} ranks"
            )
        setting = dataclasses.replace(setting, threshold=threshold)
        *before, last = split_chain(rule) or [rule]
        parts = [REGISTRIES["pre_aggregators"].parse(part) for part in before]
        aggregator = REGISTRIES["aggregators"].parse(last)
        self.rule, settings = build_stages(aggregator, parts, setting)
        self._stages = [part.build(at) for part, at in zip(parts, settings, strict=False)]
        self._last = aggregator.build(settings[-1])
        self.mode = "gathered"
        if self.rule.coordinatewise:
            self.mode = "coordinates"
        elif all(part.coordinatewise or part.weigh for part in (*self._stages, self._last)):
            self.mode = "gram"
        else:
            _say(rule, self.ranks)
        self._setting = {"rule": rule, "seed": setting.seed, "ranks": self.ranks}
        self._setting["byzantine"] = setting.byzantine
        self._state: dict[str, Tensor] = {}
        self._next = self._state  # of the next call: the parts of a call have the same state
        self._calls, self._lost = 0, torch.zeros(self.ranks + 1, dtype=torch.float64)
        self._samples: list[tuple[Tensor, Tensor | None]] = []
        self._late: tuple[Any, Tensor] | None = None
        self.open: list[tuple[list[Exchange], Tensor, Future[Tensor]]] = []

    def aggregate(
        self, vector: Tensor, computations: int | Tensor = 1, server: Tensor | None = None
    ) -> Tensor:
        """Return the aggregate [d] of the ranks' vectors [d], in their type, equal on all ranks.

        A rank whose vector has a NaN or an Inf counts as Byzantine: zeros replace its vector. If no
        vector is finite, the aggregate is NaN. Half-precision vectors travel as they are, and are
        computed in single precision.

        Args:
            vector: This rank's vector, of the same length, type and kind of device on all ranks.
            computations: The number of mini-batches of which each vector is the mean, for ``mfm``.
            server: The trusted gradient [d], equal on all ranks, for ``fltrust``.

        Raises:
            SpecError: The rule needs ``server``, or the vector has another length than the vectors
                that the rule remembers.
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
        if self.mode == "coordinates":
            for future in self.close(self.start(vector), computations):
                future.wait()
        elif self.mode == "gram":
            self._by_gram(vector, computations)
        else:
            self._gathered(vector, computations, server)
        self.end_call()

    def start(self, vector: Tensor) -> list[Exchange]:
        """Start to send all coordinates of a vector [d] to the ranks that aggregate them."""
        _spread_nan(vector)
        return [self._exchange(chunk) for chunk in torch.split(vector, CHUNK) if len(chunk)]

    def _exchange(self, vector: Tensor) -> Exchange:
        size, rest = -(-len(vector) // self.ranks), -len(vector) % self.ranks
        whole = torch.nn.functional.pad(vector, (0, rest)) if rest else vector
        rows = vector.new_empty(self.ranks, size)
        work = dist.all_to_all_single(rows.view(-1), whole, group=self.group, async_op=True)
        return Exchange(work, rows, whole, vector)

    def close(
        self, exchanges: list[Exchange], computations: int | Tensor = 1
    ) -> list[Future[Tensor]]:
        """Aggregate what is exchanged, coordinate by coordinate; return futures that end when the
        vectors have the results.
        """
        futures = []
        for exchange in exchanges:
            exchange.work.wait()
            rows = exchange.rows.to(COMPUTED_IN[exchange.rows.dtype])
            part, self._next = self.rule.aggregate(rows, self._placed(rows), computations)
            self._sample(rows, self._columns(exchange))
            futures.append(self._return(exchange, part))
        return futures

    def _return(self, exchange: Exchange, part: Tensor) -> Future[Tensor]:
        """Start to send this rank's part of the result to all."""
        vector, whole = exchange.vector, exchange.whole
        part = part.to(vector.dtype).contiguous()
        work: Any = gather(whole, part, group=self.group, async_op=True)

        def end(sent: Future[Any]) -> Tensor:
            sent.wait()
            return vector if whole is vector else vector.copy_(whole[: len(vector)])

        future: Future[Tensor] = work.get_future().then(end)
        return future

    def _by_gram(self, vector: Tensor, computations: int | Tensor) -> None:
        """Aggregate a vector whose weights, or mixtures, follow from the messages' Gram matrix."""
        _spread_nan(vector)
        exchange = self._exchange(vector)
        exchange.work.wait()
        given = rows = sound(exchange.rows.to(COMPUTED_IN[vector.dtype]))[0]
        # as on one machine, where a chain of weights makes one mean of the messages
        if self._last.weigh and all(stage.weigh for stage in self._stages):
            weights = weights_of(self._stages, self._last, self._products(rows))
            part = weighted(rows, weights)
        else:
            part = self._in_stages(rows, computations)
        self._sample(given, self._columns(exchange), part)
        self._return(exchange, part).wait()

    def _in_stages(self, rows: Tensor, computations: int | Tensor) -> Tensor:
        for place, stage in enumerate(self._stages):
            if stage.weigh is not None:
                products = self._products(rows)
                rows = mixed(rows, stage.weigh(products), central(products))
            elif stage.numbered:
                call = self._calls * len(self._stages) + place
                rows = stage.mix(rows, torch.tensor(call, device=rows.device))
            else:
                rows = stage.mix(rows)
        if self._last.weigh is None or self._last.coordinatewise:
            part: Tensor = self._last.aggregate(rows, {}, computations)[0]
            return part
        return weighted(rows, self._last.weigh(self._products(rows)))

    def _products(self, rows: Tensor) -> Tensor:
        """Return the Gram matrix [k, k] of whole vectors, from this rank's coordinates [k, n].

        The matrices are added up in the same order on all ranks, so that all decide alike. Each may
        be around another centre: together, these are one centre.
        """
        mine = torch.cat([gram(rows).flatten(), unit(rows).view(1)])
        every = mine.new_empty(self.ranks, len(mine))
        gather(every.view(-1), mine, group=self.group)
        units = every[:, -1:]
        return (every[:, :-1] * (units / units.amax()).square()).sum(0).view(len(rows), -1)

    def _gathered(self, vector: Tensor, computations: int | Tensor, server: Tensor | None) -> None:
        """Aggregate a vector by a rule that needs all of each message."""
        messages = vector.new_empty(self.ranks, len(vector))
        given = {}
        if self.rule.needs_server:
            if server is None:
                raise SpecError(
                    f"server=None: {self.text!r} needs a trusted gradient. Try: "
                    "RobustState.aggregate(vector, server=GRADIENT)"
                )
            given[SERVER] = server.to(COMPUTED_IN[vector.dtype])
        _spread_nan(vector)
        gather(messages.view(-1), vector, group=self.group)
        messages = messages.to(COMPUTED_IN[vector.dtype])
        state = self._placed(messages)
        for value in state.values():
            if value.ndim and value.shape[-1] != len(vector):
                raise SpecError(
                    f"vector of {len(vector)} numbers: the rule remembers {value.shape[-1]}. Try: "
                    "another RobustState"
                )
        result, self._next = self.rule.aggregate(messages, state | given, computations)
        self._sample(messages, len(vector), result)
        vector.copy_(result)

    @property
    def remembers(self) -> bool:
        """Return True if the next result depends on earlier calls."""
        return bool(self._state)

    def _placed(self, like: Tensor) -> dict[str, Tensor]:
        return {name: value.to(like.device) for name, value in self._state.items()}

    def _columns(self, exchange: Exchange) -> int:
        """Return the number of this rank's coordinates that are not padding."""
        size = exchange.rows.shape[1]
        return min(size, max(0, len(exchange.vector) - self._place * size))

    def _sample(self, rows: Tensor, columns: int, result: Tensor | None = None) -> None:
        """Keep some columns; others in the next call, so that each has its turn."""
        step = max(1, columns // SAMPLE)
        some = slice(self._calls % step, columns, step)
        if columns:
            self._samples.append((rows[:, some].double(), None if result is None else result[some]))

    def end_call(self) -> None:
        """Count the call, and send the ranks' parts of ``suspects``, which the next call awaits."""
        self._settle()
        lost = torch.cat(
            [self._lost.new_zeros(self.ranks, 0)]
            + [self._lost_in(rows, result) for rows, result in self._samples],
            1,
        )
        counted = lost.isfinite().all(0)
        total = torch.cat(
            [torch.where(counted, lost, 0).sum(1), counted.sum(0, keepdim=True).double()]
        )
        work = None
        if self.mode != "gathered":
            work = dist.all_reduce(total, group=self.group, async_op=True)
        self._late, self._samples, self._state = (work, total), [], self._next
        self._calls += 1

    @torch.enable_grad()
    def _lost_in(self, rows: Tensor, result: Tensor | None) -> Tensor:
        """Return the share of each message's weight that was cut off, [m, k], in the sampled
        columns.
        """
        if result is None:
            rows.requires_grad_()
            mean = self.rule.aggregate(rows, self._placed(rows), 1)[0]
            (weights,) = torch.autograd.grad(mean.sum(), rows)
            return torch.where((weights == 0).all(0), torch.nan, (weights == 0).double())
        rows = sound(rows)[0].nan_to_num()
        sizes = rows.norm(dim=1, keepdim=True)
        units = rows / torch.where(sizes > 0, sizes, 1)
        inverse = torch.linalg.pinv(units, rtol=SAME_DIRECTION)  # [k, m]
        weights = (result.double() @ inverse)[:, None] / torch.where(sizes > 0, sizes, torch.inf)
        lost: Tensor = (1 - self.ranks * weights).clamp(0, 1)
        return lost.expand(-1, rows.shape[1])

    def _settle(self) -> None:
        if self._late is not None:
            work, total = self._late
            if work is not None:
                work.wait()
            self._lost, self._late = self._lost.to(total.device) + total, None

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
        self._settle()
        shares: list[float] = (self._lost[:-1] / self._lost[-1]).tolist()
        if reset:
            self._lost = torch.zeros_like(self._lost)
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later process needs to go on; equal on all ranks, so one may save it
        for all.
        """
        self._settle()
        return self._setting | {"calls": self._calls, "state": self._state, "lost": self._lost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the ``RobustState`` from which ``state_dict`` was taken, on any rank.

        Raises:
            SpecError: The rule, f, the seed or the number of ranks differ.
        """
        for name, value in self._setting.items():
            if state[name] != value:
                raise SpecError(
                    f"{name}={value!r}: the saved state has {name}={state[name]!r}. Try: a "
                    f"RobustState with {state[name]!r}"
                )
        self._settle()
        self._calls, self._lost = state["calls"], state["lost"]
        self._state = self._next = dict(state["state"])


def _spread_nan(vector: Tensor) -> None:
    """Make a vector with a NaN or an Inf NaN everywhere, so that every rank sees it in its part."""
    clean, finite = sound(vector[None])
    if finite is not None:
        vector.copy_(clean[0])


@functools.cache
def _say(rule: str, ranks: int) -> None:
    logging.getLogger(__name__).info(
        "%s needs whole messages: each of %d ranks gets all of them", rule, ranks
    )
