"""Static identities."""

from __future__ import annotations

import pytest
import torch

from dynabro_cli.components.api import make_switching


@pytest.mark.parametrize("seed", range(2))
def test_is_the_first_draw_of_periodic(seed: int) -> None:
    static = make_switching("static", workers=17, byzantine=8, seed=seed)
    periodic = make_switching("periodic:K=3", workers=17, byzantine=8, seed=seed)
    assert int(static.mask(0).sum()) == 8
    for t in (0, 1, 7, 10**9):
        assert torch.equal(static.mask(t), periodic.mask(0))
