"""The libraries that we are compared with: a check that they are installed, and their rules as
functions of a matrix.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from torch import Tensor

from dynabro_cli.core.errors import SpecError

TAU, C = 100.0, 2.0
"""ByzFL's defaults of centered and of static clipping."""

Rule = Callable[[Tensor], Any]
"""Function of the matrix [m, d]; a mixing function returns [m, d] or a list of rows, any other
function [d].
"""


def need_byzfl() -> None:
    """Raise SpecError if ByzFL cannot be imported."""
    if importlib.util.find_spec("byzfl") is None:
        raise SpecError(
            "byzfl, which this benchmark compares with, is not installed. Try: pip install "
            "'.[bench]'"
        )


def has_byzpy() -> bool:
    """Return True if ByzPy can be imported."""
    return importlib.util.find_spec("byzpy") is not None


def byzfl_rule(name: str, f: int, *, mixed: bool) -> Rule | None:
    """Return ByzFL's counterpart of our rule ``name``, after its NNM if ``mixed``; None without a
    counterpart.

    SMEA is left out: a product with the whole matrix for each subset takes minutes. The rule gets
    the [m, d] matrix, and so does not have to stack a list, as it has to in ByzFL's training loop.
    """
    import byzfl

    makers: dict[str, Callable[[], Any]] = {
        "mean": byzfl.Average,
        "cwmed": byzfl.Median,
        "cwtm": lambda: byzfl.TrMean(f),
        "gm": byzfl.GeometricMedian,
        "krum": lambda: byzfl.Krum(f),
        "multi-krum": lambda: byzfl.MultiKrum(f),
        "mda": lambda: byzfl.MDA(f),
        "monna": lambda: byzfl.MoNNA(f),
        "meamed": lambda: byzfl.Meamed(f),
        "caf": lambda: byzfl.CAF(f),
        "centered-clipping": lambda: byzfl.CenteredClipping(tau=TAU),
        "nnm": lambda: byzfl.NNM(f),
        "bucketing": lambda: byzfl.Bucketing(2),
        "clipping": lambda: _of_a_copy(byzfl.Clipping(C)),
        "arc": lambda: _of_a_copy(byzfl.ARC(f)),
    }
    return _behind(makers[name](), byzfl.NNM(f) if mixed else None) if name in makers else None


def byzfl_geometric_median(T: int, nu: float, f: int, *, mixed: bool) -> Rule:
    """Return ByzFL's geometric median with T steps and smoothing nu."""
    import byzfl

    return _behind(byzfl.GeometricMedian(nu=nu, T=T), byzfl.NNM(f) if mixed else None)


def byzpy_rule(name: str, f: int, *, mixed: bool) -> Rule | None:
    """Return ByzPy's counterpart of our rule ``name``, after its NNM if ``mixed``; None without a
    counterpart.

    The rule gets a list of rows, as ``aggregate`` requires.
    """
    from byzpy.aggregators.coordinate_wise import CoordinateWiseMedian, CoordinateWiseTrimmedMean
    from byzpy.aggregators.geometric_wise import GeometricMedian, Krum
    from byzpy.pre_aggregators import NearestNeighborMixing

    makers: dict[str, Callable[[], Any]] = {
        "cwmed": CoordinateWiseMedian,
        "cwtm": lambda: CoordinateWiseTrimmedMean(f),
        "gm": GeometricMedian,
        "krum": lambda: Krum(f),
    }
    mix = NearestNeighborMixing(f).pre_aggregate
    if name == "nnm":
        return lambda matrix: mix(list(matrix))
    if name not in makers:
        return None
    aggregate = makers[name]().aggregate
    return (
        _behind(lambda matrix: aggregate(list(matrix)), None)
        if not mixed
        else lambda matrix: aggregate(mix(list(matrix)))
    )


def _of_a_copy(rule: Rule) -> Rule:
    """Wrap a rule that writes into its input, such as ByzFL's clipping."""
    return lambda matrix: rule(matrix.clone())


def _behind(rule: Rule, mix: Rule | None) -> Rule:
    return rule if mix is None else lambda matrix: rule(mix(matrix))
