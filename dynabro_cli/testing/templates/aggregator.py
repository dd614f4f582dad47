"""The mean of the messages that are nearest to the coordinate-wise median."""

from torch import Tensor

from dynabro_cli.plugins import aggregator


@aggregator("my-aggregator", reference="who, where, which algorithm")
def my_aggregator(messages: Tensor, *, f: int) -> Tensor:  # [m, d] -> [d]
    """Mean of the m - f messages that are nearest to the coordinate-wise median."""
    distances = (messages - messages.median(0).values).norm(dim=1)  # [m]
    return messages[distances.argsort(stable=True)[: len(messages) - f]].mean(0)
