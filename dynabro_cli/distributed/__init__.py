"""Robust rules in training jobs of ``torch.distributed``: each rank is a worker, and its gradient
is its message.

``robust_hook`` aggregates the gradients of DistributedDataParallel in place of their mean.
``aggregate_gradients`` does the same without DistributedDataParallel, for any rule. Both use a
``RobustState``, which knows the rule and the ranks. ``DynaBRO`` is the paper's algorithm.

Trust: a Byzantine rank has a wrong gradient, because of its data, its hardware or its model. It
runs this code, and each rank aggregates a part of the coordinates for all. So a rank that changes
the aggregated part, or sends different messages to different ranks, is not tolerated. Nor is a rank
that stops: the others then get the error of the process group, at the latest after its timeout.
"""

from dynabro_cli.distributed.dynabro import DynaBRO, Step
from dynabro_cli.distributed.gradients import aggregate_gradients
from dynabro_cli.distributed.hook import robust_hook
from dynabro_cli.distributed.state import RobustState

__all__ = ["DynaBRO", "RobustState", "Step", "aggregate_gradients", "robust_hook"]
