"""Fixtures of the simulation's tests."""

from __future__ import annotations

import pytest

from dynabro_cli.simulation.round.acceptance import Probe


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """No acceptance ratio is measured, so that attack and rule are asked for the round's sake
    only.
    """
    monkeypatch.setattr(Probe, "wanted", lambda *_: False)
