"""Byzantine workers send the negative of the honest mean."""

from typing import Annotated

from torch import Tensor

from dynabro_cli.plugins import Range, attack, honest_mean


@attack("my-attack", reference="who, where, which algorithm", reads_own=False)
def my_attack(
    vectors: Tensor, byzantine: Tensor, *, scale: Annotated[float, Range(above=0, maximum=1)] = 1.0
) -> Tensor:  # [m, d], [m] -> [d]
    """Send minus ``scale`` times the mean of the honest workers' vectors."""
    return -scale * honest_mean(vectors, byzantine)
