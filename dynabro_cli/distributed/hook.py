"""The communication hook of DistributedDataParallel."""

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dynabro_cli.core.errors import SpecError
from dynabro_cli.distributed.state import RobustState


# DistributedDataParallel compares these annotations with types, so they are not texts
def robust_hook(state: RobustState, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Replace each bucket of gradients by the aggregate of the ranks' buckets, while later ones are
    computed: ``ddp.register_comm_hook(state, robust_hook)``.

    A rule that works coordinate by coordinate gives what it gives for whole gradients. One
    exception: a NaN or an Inf of a rank excludes its bucket, and not its other buckets.

    Raises:
        SpecError: The rule needs whole gradients.
    """
    if state.mode != "coordinates":
        raise SpecError(
            f"rule={state.text!r}: DistributedDataParallel shows parts of a gradient, and this "
            "rule needs all of it. Try: aggregate_gradients(model, state) after backward(), "
            "without DistributedDataParallel or under no_sync()"
        )
    if bucket.index() == 0:
        state.open.clear()  # of a backward pass that failed
    exchange = state.start(bucket.buffer())
    state.open.append(exchange)
    # the rule runs on a bucket while the next one is on its way, in the same order on all ranks
    while len(state.open) > (not bucket.is_last()):
        state.close(state.open.pop(0))
    if bucket.is_last():
        state.end_call()
    return exchange.done
