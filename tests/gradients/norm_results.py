"""Results of a batch norm, and bounds of their errors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

EPS = 1e-5


def results(
    functions: object,
    x: Tensor,
    gy: Tensor,
    vectors: tuple[Tensor, Tensor] | None,
    relu: bool,
    workers: int,
    *before: Tensor,
) -> tuple[Tensor, ...]:
    """Output, mean, variance, and the gradients by input, weight and bias, and by ``before`` if the
    kernel adds it.
    """
    weight, bias = vectors or (None, None)
    out, mean, variance, kept = functions.normalise(x, weight, bias, EPS, relu, *before)  # type: ignore[attr-defined]
    return out, mean, variance, *functions.normalise_backward(gy, kept, weight, relu, workers, True)  # type: ignore[attr-defined]


def limits(
    x: Tensor,
    gy: Tensor,
    vectors: tuple[Tensor, Tensor] | None,
    relu: bool,
    exact: Sequence[Tensor],
) -> list[float]:
    """Return what the relative error of a sum is multiplied by in each of ``results``."""
    inverse, largest = float((exact[2] + EPS).rsqrt().max()), float(x.abs().max())
    factor = 1.0 if vectors is None else 1 + float(vectors[0].abs().max())
    normal = 1 + largest * inverse  # what a rounding of the input does to a normalised value
    given = float(gy.abs().max())
    # x_hat multiplies the relative error of 1/sigma in the output; in the gradient by the input,
    # which is weight/sigma (gy - mean gy - x_hat mean(gy x_hat)), the error of the last mean, too,
    # which the sum below has as well
    values = x.double().relu() if relu else x.double()
    spread, places = (
        1 + float(((values - exact[1]) * (exact[2] + EPS).rsqrt()).abs().max()),
        x.shape[1],
    )
    found = [
        factor * normal * spread,
        largest,
        largest * (1 + largest),
        factor * inverse * normal * given * spread,
    ]
    return [*found, places * given * normal, places * given]
