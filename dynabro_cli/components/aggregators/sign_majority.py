"""Majority vote of signs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.components.aggregators._api import (
    REGISTRY,
    Aggregator,
    AggregatorSetting,
    by_coordinate,
    tolerated,
)
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import NoParameters

if TYPE_CHECKING:
    from torch import Tensor


@REGISTRY.register(
    "sign-majority",
    reference="Bernstein, Zhao, Azizzadenesheli & Anandkumar, ICLR 2019 (Algorithm 1); signSGD: "
    "Bernstein, Wang, Azizzadenesheli & Anandkumar, ICML 2018",
)
def sign_majority(_: NoParameters, setting: AggregatorSetting) -> Aggregator:
    """Sign majority: signSGD with majority vote, the sign of the sum of the messages' signs.

    A(g_1, ..., g_m)_k = sign(sum_i sign(g_{i,k})). A message's 0 abstains, and a tie is 0.

    The aggregate shows no length: every coordinate without a tie moves by the learning rate eta,
    and a step has the length eta sqrt(d), however short the messages are. So eta must be smaller
    than for other rules, about by the factor |A|/sqrt(d) with A an aggregate of theirs, and must
    decrease (``lr_drop``) for the model to come to rest. The signs of workers' momentums are
    voted on with ``--method momentum`` (SIGNUM in the paper). DynaBRO's correction multiplies a
    difference of two votes by 2^J, although such a difference shrinks only where votes agree. The
    acceptance ratio is measured by small moves, and means little for a vote.

    No kappa is proved, because the aggregate is not near the messages. Raises SpecError if 2f >= m
    with f the declared number of Byzantine workers, which the rule itself does not use.

    Differs from the paper: there a message is one bit for each coordinate, so a 0 also votes for 1
    or -1. Here workers send numbers, and attacks see numbers.
    """
    tolerated("sign-majority", None, setting)
    return by_coordinate(majority, None)


def majority(messages: Tensor) -> Tensor:
    """Return the majority [d] of the signs of messages [m, d]; NaN for a coordinate with a NaN."""
    votes = messages.sign().sum(0).sign()  # at most m, so that the sum is exact
    # torch's sign of NaN is 0, which would hide that no message is finite
    return torch.where(messages.isnan().any(0), torch.nan, votes)
