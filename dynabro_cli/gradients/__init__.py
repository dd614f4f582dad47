"""Per-worker gradients of any torch model: one pass over all workers' samples, one gradient per
worker.

>>> import torch
>>> from torch import nn
>>> from dynabro_cli.gradients import WorkerGradients
>>> engine = WorkerGradients(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), workers=3)
>>> losses = engine(torch.randn(3, 5, 1, 8, 8), torch.randint(10, (3, 5)), batches=1, seeds=())
>>> losses.shape, engine.matrix.shape
(torch.Size([3]), torch.Size([3, 650]))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynabro_cli.gradients.engine import WorkerGradients

__all__ = ["WorkerGradients"]


def __getattr__(name: str) -> Any:
    """Import ``WorkerGradients`` on first use, so that importing the package does not import
    torch.
    """
    if name == "WorkerGradients":
        from dynabro_cli.gradients.engine import WorkerGradients

        return WorkerGradients
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
