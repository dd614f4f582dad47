"""DynaBRO in a training job of ``torch.distributed``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dynabro_cli.components.methods._api import Measured, MethodSetting
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import format_value
from dynabro_cli.core.streams import Streams
from dynabro_cli.core.vectors.lengths import length
from dynabro_cli.distributed.state import RobustState, gather

WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel"}
"""Names of modules that add up or share out gradients; importing FSDP would take long."""


class Step(NamedTuple):
    """Facts about a step.

    Attributes:
        level: The drawn level J; above ``jmax`` there is no correction.
        accepted: True if the filter accepted the correction; None without a correction to judge.
        mini_batches: The number of mini-batches of this rank: 2^J with a correction, else 1.
        loss: The loss of this rank's first mini-batch.
    """

    level: int | None
    accepted: bool | None
    mini_batches: int
    loss: Tensor


class DynaBRO:
    """DynaBRO for the ranks of a process group: every rank is a worker of Algorithm 1 or 2.

    ``step`` draws the level J, computes this rank's mini-batches, and leaves g_t in the gradients
    of the model; a step of any optimizer follows. The method ``dynabro`` of simulations makes plan,
    verdict and g_t, on every rank from the seed and the aggregates, which are equal on all ranks.
    So a Byzantine rank influences the others by its gradient and, with filter=adaptive or clip, by
    its distance from the aggregate, which it computes itself.

    Rank 0's parameters and buffers are copied to all ranks first, as by DistributedDataParallel.
    From then on buffers, such as the statistics of batch normalisation, are each rank's own: its
    mini-batches update them, and no other rank sees them (``broadcast_buffers=False``).

    Args:
        model: The model, without DistributedDataParallel; what does not require a gradient is left
            alone.
        rule: Such as ``cwtm`` or ``nnm+cwtm``, as for ``RobustState``.
        byzantine: The declared number f of Byzantine ranks.
        budget: The planned number of mini-batches of each rank, from which the method's constants
            follow (T, and ``jmax=None``). Nothing changes when it is spent.
        seed: The seed of J and of rules that draw, equal on all ranks.
        process_group: The ranks; None for all.
        parameters: Parameters of the method: ``jmax``, ``filter``, ``noise_bound``, ``tau``,
            ``clip``. They have the meanings and defaults of ``dynabro show dynabro``.

    Attributes:
        state: The rule's state, for ``suspects``.
        round: The number of steps.
        spent: The number of mini-batches of this rank.

    Raises:
        SpecError: The model, the rule or a parameter is not legal. Or the filter needs
            ``noise_bound``, which cannot be measured: nobody knows which ranks are honest.
    """

    def __init__(
        self,
        model: nn.Module,
        rule: str,
        *,
        byzantine: int,
        budget: int,
        seed: int = 0,
        process_group: dist.ProcessGroup | None = None,
        **parameters: Any,
    ) -> None:
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        wrappers = {type(part).__name__ for part in model.modules()} & WRAPPERS
        why = "" if self._parameters else "no parameter requires a gradient. Try: another model"
        for name in wrappers:
            why = f"{name} combines gradients before a rule sees them. Try: the model inside"
        if why:
            raise SpecError(f"model={type(model).__name__}: {why}")
        given = [f"{name}={format_value(value)}" for name, value in parameters.items()]
        method = REGISTRIES["methods"].parse("dynabro" + ":" * bool(given) + ",".join(given))
        # without a process group, RobustState raises the error
        ranks = dist.get_world_size(process_group) if dist.is_initialized() else 1
        self._method: Any = method.build(MethodSetting(ranks, budget))
        if self._method.wants_noise:
            raise SpecError(
                "noise_bound=auto: V is measured with workers that are known to be honest, and no "
                "rank is. Try: noise_bound=V, such as the value that a simulated run stores"
            )
        self.state = RobustState(
            rule,
            byzantine=byzantine,
            seed=seed,
            threshold=self._method.threshold,
            process_group=process_group,
        )
        if self._method.with_measured is not None:
            self._method = self._method.with_measured(Measured(self.state.rule.kappa))
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), group=process_group, group_src=0)
        self._streams = Streams(seed)
        self._sizes = [parameter.numel() for parameter in self._parameters]
        types = (parameter.dtype for parameter in self._parameters)
        self._total = self._parameters[0].new_zeros(
            sum(self._sizes), dtype=functools.reduce(torch.promote_types, types, torch.float32)
        )
        self.round = self.spent = 0

    def step(self, loss_of_one_mini_batch: Callable[[], Tensor]) -> Step:
        """Replace the gradients of the model by g_t.

        Args:
            loss_of_one_mini_batch: Returns the loss of a fresh mini-batch of this rank; called once
                for each mini-batch.
        """
        method, spread = self._method, None
        plan = method.plan_of(self.round, self._streams.moved("level", self.round))
        losses, aggregates = list[Tensor](), list[Tensor]()
        self._total.zero_()
        for prefix in plan.prefixes:
            while len(losses) < prefix:
                losses.append(self._add(loss_of_one_mini_batch()))
            message = self._total / prefix
            aggregates.append(self.state.aggregate(message, prefix))
            if method.spread is not None and len(aggregates) == 1:
                # rho depends on distances alone, so numbers at these distances stand for messages
                mine = length(message - aggregates[0])[None]
                apart = mine.new_empty(self.state.ranks)
                gather(apart, mine, group=self.state.group)
                spread = method.spread(apart[:, None], None, apart.new_zeros(1))
        direction, accepted = method.direction(aggregates, plan, spread)
        for parameter, part in self._parts(direction):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        self.round += 1
        self.spent += len(losses)
        verdict = None if accepted is None else bool(accepted)
        return Step(plan.level, verdict, len(losses), losses[0])

    def _add(self, loss: Tensor) -> Tensor:
        """Add the gradient of a loss to the sum; return the loss."""
        for parameter in self._parameters:
            parameter.grad = None
        torch.autograd.backward(loss)
        for parameter, part in self._parts(self._total):
            if parameter.grad is not None:
                part += parameter.grad.to_dense().flatten()
        return loss.detach()

    def _parts(self, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Return the parameters, each with its part of a vector [d]."""
        return zip(self._parameters, torch.split(vector, self._sizes), strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Return what a later job needs to continue bit for bit, with the same arguments, model and
        mini-batches; equal on all ranks, except ``spent``.
        """
        return {"round": self.round, "spent": self.spent, "rule": self.state.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as the ``DynaBRO`` from which ``state_dict`` was taken."""
        self.round, self.spent = state["round"], state["spent"]
        self.state.load_state_dict(state["rule"])
