"""The quadratic of Appendix E."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.tasks._api import REGISTRY, Defaults, Objective, Task, TaskSetting
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    dimension: int = parameter(2, minimum=1, maximum=1_000_000_000, help="d")
    condition: float = parameter(3.0, minimum=1, help="largest eigenvalue of A; the smallest is 1")
    sigma: float = parameter(0.5, minimum=0, help="noise of a gradient: E|noise|^2 = sigma^2 d")
    noise: str = parameter(
        "gaussian",
        choices=("gaussian", "bounded"),
        help="normal, or of constant length V = sigma sqrt(d)",
    )
    start: tuple[float, ...] | None = parameter(
        None,
        auto=lambda block, _: usual_start(block.dimension),
        help="x_1 as a:b:...; auto: 3, -3, 3, ...",
    )
    radius: float | None = parameter(
        None, above=0, help="K is the ball of this radius around 0; auto: K is R^d"
    )


def usual_start(d: int) -> tuple[float, ...]:
    """Return 3, -3, 3, ...: [d]."""
    return tuple(3.0 * (-1) ** k for k in range(d))


DEFAULTS = Defaults(
    model=None,
    workers=3,
    byzantine=1,
    budget=3000,
    batch_size=1,
    learning_rate=5e-3,
    mlmc_learning_rate=5e-3,
    lr_drop="none",
    weight_decay=0.0,
    eval_every=10,
)


@REGISTRY.register("quadratic", Parameters, reference="DynaBRO (ICML 2024), Appendix E")
def quadratic(parameters: Parameters, setting: TaskSetting) -> Task:
    """Quadratic: f(x) = 1/2 x^T A x, f* = 0, with additive gradient noise; no data and no model.

    The eigenvalues of A are spaced evenly in the logarithm, from ``condition`` (along (1, ..., 1))
    down to 1. With d = 2 and condition 3, A is the paper's [[2, 1], [1, 2]]. Noise is N(0, sigma^2
    I), or uniform on the sphere of radius V = sigma sqrt(d) (noise=bounded, the theory's Assumption
    2.2 with the same variance). A mini-batch averages ``batch_size`` such gradients. Records the
    gap f(x_t) - f*; accuracies stay empty.

    Raises SpecError if ``start`` does not have ``dimension`` numbers.

    Differs from the paper: the paper does not give x_1; here x_1 = (3, -3).
    """
    d = parameters.dimension
    if parameters.start is not None and len(parameters.start) != d:
        raise SpecError(
            f"task 'quadratic': start has {len(parameters.start)} numbers; it must have "
            f"dimension={d}, written like start=3:-3"
        )
    return Task(DEFAULTS, lambda: _objective(parameters), trains_model=False, dimension=d)


def _objective(parameters: Parameters) -> Objective:
    d = parameters.dimension
    exponents = (
        torch.linspace(1, 0, d, dtype=torch.float64)
        if d > 1
        else torch.ones(1, dtype=torch.float64)
    )
    eigenvalues = torch.pow(torch.tensor(parameters.condition, dtype=torch.float64), exponents)
    # The reflection I - 2 u u^T that swaps e_1 and (1, ..., 1)/sqrt(d): the eigenvectors of A are
    # its columns.
    u = torch.full((d,), -(d**-0.5), dtype=torch.float64)
    u[0] += 1
    length = u.norm()
    if length > 0:
        u /= length

    def reflect(x: Tensor) -> Tensor:
        return x - 2 * (x @ u) * u

    def gradient(x: Tensor) -> Tensor:
        return reflect(eigenvalues * reflect(x))

    def noise(generator: np.random.Generator, count: int) -> Tensor:
        draws = generator.standard_normal((count, d))
        if parameters.noise == "bounded":
            draws *= np.sqrt(d) / np.linalg.norm(draws, axis=1, keepdims=True)
        return torch.from_numpy(parameters.sigma * draws)

    def project(x: Tensor) -> Tensor:
        if parameters.radius is None:
            return x
        length = x.norm()
        return torch.where(
            length <= parameters.radius, x, x * (parameters.radius * length.reciprocal())
        )

    start = parameters.start or usual_start(d)
    return Objective(
        start=project(torch.tensor(start, dtype=torch.float64)),
        gradient=gradient,
        noise=noise,
        gap=lambda x: 0.5 * (x @ gradient(x)),
        project=project,
    )
