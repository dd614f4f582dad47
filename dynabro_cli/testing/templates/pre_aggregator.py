"""Messages are shortened to the median of their lengths."""

from torch import Tensor

from dynabro_cli.plugins import pre_aggregator


@pre_aggregator("my-pre-aggregator", reference="who, where, which algorithm")
def my_pre_aggregator(messages: Tensor) -> Tensor:  # [m, d] -> [m, d]
    """Clipping to the median length: y_i = g_i min(1, c/|g_i|), with c the median of |g_1|, ...,
    |g_m|.
    """
    lengths: Tensor = messages.norm(dim=1, keepdim=True)
    return messages * (lengths.median() / lengths).clamp(max=1).nan_to_num(1.0)
