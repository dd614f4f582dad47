"""Arrays that a user brings: what rounding, masks and palettes would change is refused or kept."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dynabro_cli.components.tasks._arrays import images_of
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.events import Finished
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.setup import simulate
from tests.tables import each_row

S = np.random.default_rng(0).normal(size=(600, 4))
Y = (S[:, 0] > 0).astype(np.int64)
OFFSETS = {
    "seconds": 1.76e9 + 20 * S,
    "Julian days": 2461000.5 + 0.05 * S,
    "numbers of 64 bits": (1.7e12 + 20 * S).astype(np.int64),
    "nanoseconds": (1.76e18 + 2e10 * S).astype(np.int64),
    "longitudes": 10.5 + 1e-6 * S,
    "long doubles": (1e10 + S).astype(np.longdouble),
}


@each_row("name", OFFSETS)
def test_numbers_that_single_precision_does_not_resolve_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"which single precision does not resolve\. Try: X - X"):
        images_of((OFFSETS[name], Y), "mine")
    images = images_of((OFFSETS[name], Y), "mine", featurewise=True).tensors()
    order = np.random.Generator(np.random.Philox(0)).permutation(len(S))[120:]
    raw = (OFFSETS[name] - OFFSETS[name][0])[order].astype(np.float64)
    expected = (raw - raw.mean(0)) / raw.std(0)
    assert np.abs(images.train_images[:, 0, 0].numpy() - expected).max() < 1e-3


@each_row(
    "x",
    [
        S,
        1.76e9 + 25_000 * S,
        np.full((600, 4), 0.1),
        np.full((600, 4), 2**40 + 1),
        (S * 100).astype(np.int64),
        S.astype(np.float16),
        S > 0,
        (S > 0).astype(np.uint8),
        1e-30 * S,
    ],
    ids=["plain", "days", "constant", "constant number", "whole", "half", "bool", "bytes", "small"],
)
def test_other_numbers_are_accepted_without_a_note(x: np.ndarray[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert images_of((x, Y), "mine").notes == ()
        values = images_of((x, Y), "mine", featurewise=True).tensors().train_images
    assert values.isfinite().all()
    assert values.abs().max() < 100


def test_a_value_of_a_window_that_its_channel_hides() -> None:
    """Samples [n, h, w] may be windows of a table, with a time of day beside small numbers."""
    windows = np.repeat(S[:, :1], 6, 1).reshape(-1, 2, 3)
    windows[:, :, 2] = 1.76e9 + 20 * windows[:, :, 2]
    (note,) = images_of((windows, Y), "mine").notes
    assert "6 of 6 pixels hardly vary, such as pixel 0. Try: featurewise=True" in note
    assert images_of((windows, Y), "mine", featurewise=True).notes == ()


def test_a_column_may_have_its_own_mean_and_deviation(tmp_path: Path) -> None:
    table = np.c_[S[:, :1], 1e6 * S[:, 1:], np.full(600, 7.0)]
    np.savez(tmp_path / "t.npz", X=table, y=Y)
    (note,) = images_of((table, Y), "mine").notes
    assert "1 of 5 columns hardly vary, such as column 0. Try: featurewise=True" in note
    assert images_of((table, Y), "mine", featurewise=True).notes == ()
    accuracies = []
    for text in ("npz:file=t.npz", "npz:file=t.npz,featurewise=true"):
        spec = RunSpec(
            task=text,
            model="logistic",
            method="sgd",
            workers=5,
            byzantine=1,
            budget=200,
            learning_rate=0.1,
        )
        *_, last = simulate(spec, data_dir=tmp_path, device="cpu")
        assert isinstance(last, Finished)
        accuracies.append(last.accuracy)
    assert accuracies[0] < 0.7
    assert accuracies[1] > 0.95


def test_the_test_set_is_normalised_by_the_training_set() -> None:
    images = images_of((S, Y, S + 3, Y), "mine", featurewise=True).tensors()
    shift = images.test_images[:, 0, 0] - images.train_images[:, 0, 0]
    assert torch.allclose(shift, torch.tensor(3 / S.std(0)).float().expand(600, -1), atol=1e-5)
    assert (images.mean[0], images.std[0]) == pytest.approx((0, 1), abs=1e-6)


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, samples: Any, labels: Any) -> None:
        self.samples, self.labels = samples, labels

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Any:
        return self.samples[place], self.labels[place]


MASKED = np.ma.masked_values(np.where(S > 2, 1e20, S), 1e20)


@each_row(
    ("arrays", "what"),
    [
        ((MASKED, Y), "X"),
        ((list(MASKED), Y), "X"),
        ((S, np.ma.array(Y, mask=Y > 0)), "y"),
        ((S, Y, MASKED, Y), "X"),
        (Pairs(MASKED, Y), "X"),
        (Pairs(S, np.ma.array(Y, mask=Y > 0)), "y"),
    ],
    ids=["X", "list", "y", "test set", "data set", "labels of a data set"],
)
def test_masked_values_are_refused(arrays: Any, what: str) -> None:
    with pytest.raises(SpecError, match=f"{what} has masked values"):
        images_of(arrays, "mine")


def test_a_mask_without_masked_values_changes_nothing() -> None:
    assert images_of((np.ma.array(S), Y), "m").digest == images_of((S, Y), "m").digest


@each_row("mode", ["P", "PA", "RGB", "RGBA"])
@each_row("form", [Pairs, lambda *pair: pair], ids=["data set", "list"])
def test_pictures_with_a_palette_are_their_colours(mode: str, form: Any) -> None:
    pixels = np.random.default_rng(1).integers(2, size=(20, 5, 6, 3), dtype=np.uint8) * 255
    if mode == "PA":  # Pillow makes it from grey pixels only
        pixels = pixels[..., :1].repeat(3, -1)
    colours = [Image.fromarray(picture) for picture in pixels]
    through = {"P": ["P"], "PA": ["LA", "PA"]}.get(mode, [mode])
    pictures = []
    for picture in colours:
        for step in through:
            picture = picture.convert(step)
        pictures.append(picture)
    labels = [number % 2 for number in range(20)]
    images = images_of(form(pictures, labels), "mine")
    assert images.digest == images_of((pixels.transpose(0, 3, 1, 2), labels), "mine").digest
