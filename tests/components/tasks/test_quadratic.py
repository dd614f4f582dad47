"""The quadratic of Appendix E: its matrix, noise, gap and ball."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import Objective, TaskSetting
from dynabro_cli.core.errors import SpecError
from tests.simulation.reference import quadratic
from tests.tables import each_row


def objective(text: str = "quadratic") -> Objective:
    loaded: Objective = REGISTRIES["tasks"].parse(text).build(TaskSetting("unused")).load()  # type: ignore[arg-type]
    return loaded


def matrix(made: Objective) -> np.ndarray:
    """A, column by column: the gradients at the unit vectors."""
    size = len(made.start)
    return torch.stack(
        [made.gradient(unit) for unit in torch.eye(size, dtype=torch.float64)], 1
    ).numpy()


def test_the_papers_matrix_and_start() -> None:
    np.testing.assert_allclose(matrix(objective()), [[2, 1], [1, 2]], rtol=0, atol=1e-14)
    assert objective().start.tolist() == [3.0, -3.0]
    assert float(objective().gap(torch.tensor([3.0, -3.0], dtype=torch.float64))) == pytest.approx(
        9.0, rel=1e-14
    )


@each_row(("d", "condition"), [(1, 5.0), (2, 3.0), (3, 1.0), (7, 100.0), (50, 1e4)])
def test_eigenvalues(d: int, condition: float) -> None:
    """Evenly spaced in the logarithm from ``condition``, along (1, ..., 1), down to 1."""
    made = objective(f"quadratic:dimension={d},condition={condition}")
    a = matrix(made)
    np.testing.assert_allclose(a, a.T, rtol=0, atol=1e-10 * condition)
    expected = [condition ** (k / (d - 1)) for k in range(d)] if d > 1 else [condition]
    np.testing.assert_allclose(np.linalg.eigvalsh(a), expected, rtol=1e-9)
    np.testing.assert_allclose(a @ np.ones(d), condition * np.ones(d), rtol=1e-9)
    x = torch.linspace(-1, 2, d, dtype=torch.float64)
    assert float(made.gap(x)) == pytest.approx(0.5 * x.numpy() @ a @ x.numpy(), rel=1e-9)
    assert float(made.gap(torch.zeros(d, dtype=torch.float64))) == 0.0


def test_gradient_is_that_of_the_gap() -> None:
    made = objective("quadratic:dimension=5,condition=20")
    x = torch.tensor([1.0, -0.5, 0.25, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(made.gap(x), x)
    torch.testing.assert_close(made.gradient(x.detach()), expected)


def generator() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(0))


def test_gaussian_noise_is_n_0_sigma_squared_i() -> None:
    """n = 100,000 draws of d = 3, sigma = 0.5. Means and covariances are asymptotically normal with
    standard errors of sigma/sqrt(n), sigma^2 sqrt(2/n) (diagonal) and sigma^2/sqrt(n); six of them
    are exceeded by none of the nine numbers but with probability 2e-8. The share beyond sigma,
    0.3173, is checked to six standard errors: 2e-9.
    """
    n, sigma = 100_000, 0.5
    draws = objective("quadratic:dimension=3,sigma=0.5").noise(generator(), n).numpy()
    assert draws.shape == (n, 3)
    assert np.abs(draws.mean(0)).max() <= 6 * sigma / math.sqrt(n)
    errors = np.abs(np.cov(draws.T) - sigma**2 * np.eye(3))
    assert errors.diagonal().max() <= 6 * sigma**2 * math.sqrt(2 / n)
    assert (errors - np.diag(errors.diagonal())).max() <= 6 * sigma**2 / math.sqrt(n)
    share = 2 * (1 - 0.8413447460685429)
    assert abs((np.abs(draws) > sigma).mean() - share) <= 6 * math.sqrt(
        share * (1 - share) / (3 * n)
    )


@pytest.mark.parametrize("d", [1, 2, 5])
def test_bounded_noise_is_uniform_on_a_sphere(d: int) -> None:
    """|noise| = V = sigma sqrt(d) always, so E|noise|^2 is the Gaussian's. Mean and covariance
    sigma^2 I as above, with fourth moments under the Gaussian's: error probability 1e-7 over
    all.
    """
    n, sigma = 50_000, 0.5
    draws = (
        objective(f"quadratic:dimension={d},sigma=0.5,noise=bounded").noise(generator(), n).numpy()
    )
    np.testing.assert_allclose(np.linalg.norm(draws, axis=1), sigma * math.sqrt(d), rtol=1e-12)
    assert np.abs(draws.mean(0)).max() <= 6 * sigma / math.sqrt(n)
    assert np.abs(np.cov(draws.T) - sigma**2 * np.eye(d)).max() <= 6 * sigma**2 * math.sqrt(2 / n)


def test_noise_is_drawn_from_the_generator_alone() -> None:
    made = objective()
    assert torch.equal(made.noise(generator(), 5), made.noise(generator(), 5))
    assert not bool(objective("quadratic:sigma=0").noise(generator(), 5).any())


def test_start() -> None:
    assert objective("quadratic:start=1:-2.5").start.tolist() == [1.0, -2.5]
    assert objective("quadratic:dimension=3").start.tolist() == [3.0, -3.0, 3.0]
    assert objective("quadratic:dimension=1,start=0").start.tolist() == [0.0]
    for text, count in (
        ("quadratic:start=1", 1),
        ("quadratic:start=1:2:3", 3),
        ("quadratic:dimension=4,start=1:2", 2),
    ):
        with pytest.raises(SpecError, match=f"start has {count} numbers; it must have dimension="):
            objective(text)


def test_projection_onto_the_ball() -> None:
    made = objective("quadratic:radius=2,start=30:-40")
    np.testing.assert_allclose(made.start, [1.2, -1.6], rtol=1e-14)
    np.testing.assert_allclose(
        made.project(torch.tensor([0.0, 5.0], dtype=torch.float64)), [0.0, 2.0], rtol=1e-14
    )
    wide = objective("quadratic:radius=10").project(
        torch.tensor([30.0, -40.0], dtype=torch.float64)
    )
    np.testing.assert_allclose(wide, [6.0, -8.0], rtol=1e-14)
    for x in ([1.0, -1.0], [0.0, 0.0], [0.0, 2.0]):
        assert made.project(torch.tensor(x, dtype=torch.float64)).tolist() == x
    free = torch.tensor([1e9, 1.0], dtype=torch.float64)
    assert torch.equal(objective().project(free), free)


@each_row("radius", [0.1, 7, 49, 1e9])
def test_a_point_of_the_ball_is_its_own_projection(radius: float) -> None:
    """To the last bit, so that a ball that is never left changes nothing: 49 x (1/49) is not 1 in
    binary.
    """
    x = torch.tensor([0.3, -0.6], dtype=torch.float64) * min(radius, 1.0)
    assert torch.equal(objective(f"quadratic:radius={radius!r}").project(x), x)
    if radius > 40:
        kept, free = (
            quadratic(task=task, budget=30)
            for task in (f"quadratic:radius={radius!r}", "quadratic")
        )
        assert kept.gaps == free.gaps


@each_row(
    "text",
    [
        "quadratic:radius=0",
        "quadratic:dimension=0",
        "quadratic:condition=0.5",
        "quadratic:sigma=-1",
        "quadratic:noise=x",
    ],
)
def test_illegal_parameters(text: str) -> None:
    with pytest.raises(SpecError, match="is not legal"):
        objective(text)
