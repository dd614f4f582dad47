"""Gradients of a model, aggregated over the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dynabro_cli.core.errors import SpecError
from dynabro_cli.distributed.state import RobustState


def aggregate_gradients(
    model: nn.Module | Iterable[Tensor],
    rule: str | RobustState,
    *,
    byzantine: Any = None,
    process_group: dist.ProcessGroup | None = None,
) -> RobustState:
    """Replace the gradients of a model by the aggregate of the ranks' gradients, after
    ``backward()``.

    The gradient of all parameters is one vector, so any rule is exact. A parameter without a
    gradient on some ranks counts as 0 there, and gets one; without a gradient on all ranks, it
    stays so. Parameters of several types are computed in the widest one.

    Args:
        model: The model, or its parameters, the same on all ranks.
        rule: The rule's text, with ``byzantine``; or a ``RobustState``, which saves time, and which
            a rule that remembers earlier calls needs.
        byzantine: The declared number of Byzantine ranks, as for ``RobustState``.
        process_group: The ranks; None for all.

    Returns:
        The state, for ``suspects``, and for the next call.

    Raises:
        SpecError: As ``RobustState`` raises it. Or DistributedDataParallel has already averaged the
            gradients, or the rule remembers earlier calls and only its text is given, or it needs
            the server's gradient.
    """
    if isinstance(model, DistributedDataParallel) and model.require_forward_param_sync:
        raise SpecError(
            "model=DistributedDataParallel: backward() has averaged the ranks' gradients. Try: the "
            "forward and backward pass under model.no_sync(), or of model.module"
        )
    if isinstance(rule, RobustState):
        state = rule
    else:
        state = RobustState(rule, byzantine=byzantine, process_group=process_group)
    if byzantine not in (None, state.byzantine):
        raise SpecError(
            f"byzantine={byzantine}: the state has {state.byzantine}. Try: leave it out"
        )
    if state.rule.needs_server:
        raise SpecError(
            f"rule={state.text!r}: it needs the server's gradient. Try: "
            f"RobustState({state.text!r}, byzantine={state.byzantine})"
            ".aggregate(gradient, server=trusted_gradient)"
        )
    parameters = [*(model.parameters() if isinstance(model, nn.Module) else model)]
    if not parameters:
        return state
    present = [parameter.grad is not None for parameter in parameters]
    somewhere = torch.tensor(present, dtype=torch.uint8, device=parameters[0].device)
    dist.all_reduce(somewhere, dist.ReduceOp.MAX, group=state.group)
    gradients = list[Tensor]()
    for parameter in itertools.compress(parameters, somewhere.tolist()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    if not gradients:
        return state
    vector = torch.cat([gradient.flatten() for gradient in gradients])
    state.aggregate_(vector)
    if state is not rule and state.remembers:
        raise SpecError(
            f"rule={rule!r}: the rule remembers earlier calls. Try: state = RobustState({rule!r}, "
            f"byzantine={byzantine}) once, and aggregate_gradients(model, state)"
        )
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, part in zip(gradients, torch.split(vector, sizes), strict=True):
        gradient.copy_(part.view_as(gradient))
    return state
