"""The server's update: the learning rate of a round, and x_{t+1} = x_t - eta_t (g_t + wd x_t)."""

from __future__ import annotations

import torch
from torch import Tensor

from dynabro_cli.experiment.complete import CompleteSpec, parse_drops
from dynabro_cli.vectors.lengths import length


class Step:
    """The learning-rate rule and weight decay of a run.

    ``fixed`` takes eta, times the factor of every drop whose fraction of the budget is reached before the round.
    ``adagrad-norm`` takes eta_t = eta_0/sqrt(sum_{s <= t} |g_s|^2) (equation 5 of the paper); its sum is ``squares``.
    """

    def __init__(self, spec: CompleteSpec, x: Tensor) -> None:
        self._rate = spec.learning_rate
        self._decay = spec.weight_decay
        self._drops = [(fraction * spec.budget, factor) for fraction, factor in parse_drops(spec.lr_drop)]
        self._adaptive = spec.lr_rule == "adagrad-norm"
        self.squares = x.new_zeros((), dtype=torch.float64)

    def update(self, x: Tensor, direction: Tensor, spent: int) -> Tensor | float:
        """Move ``x`` in place along ``direction``, after ``spent`` computations; return the learning rate used."""
        rate: Tensor | float = self._rate
        for start, factor in self._drops:
            if spent >= start - 1e-9:
                rate *= factor
        if self._adaptive:
            self.squares += length(direction).square()
            rate = torch.where(self.squares > 0, self._rate / self.squares.sqrt(), 0.0)
        if self._decay:
            direction = direction.add(x, alpha=self._decay)
        x.sub_(rate * direction)
        return rate
