"""Tasks made of arrays: samples of any shape, floats or bytes, with their labels."""

from __future__ import annotations

import sys
from typing import Any

from dynabro_cli.components.tasks._api import Defaults, Images, ImageShape, Task
from dynabro_cli.core.errors import SpecError, first_line
from dynabro_cli.core.lazy import np, torch

DEFAULTS = Defaults(
    model="logistic",
    workers=17,
    byzantine=8,
    budget=2000,
    batch_size=16,
    learning_rate=0.01,
    mlmc_learning_rate=0.05,
    lr_drop="0.8:0.1",
    weight_decay=1e-4,
    eval_every=100,
)
TEST_SHARE = 0.2
"""Share of the samples that becomes the test set if the arrays have no test set."""
FEW = 4
"""Largest number of channels of ordinary pictures."""
SHOWN = 5
"""Largest number of labels in a message."""
COLOURS = ("P", "PA", "RGB", "RGBA")
"""Kinds of Pillow's pixels that are read as RGB, as in ``image-folder``."""
SMALL = 0.01
"""Largest share of a channel's deviation that is lost by rounding, and smallest share that a column
has without a note. Pixels vary less: 1 in 60,000 pictures may have ink there.
"""
FEATUREWISE = "featurewise=True (in a text npz:file=F.npz,featurewise=true)"


def make_task(
    arrays: Any,
    *,
    name: str = "arrays",
    defaults: Defaults = DEFAULTS,
    featurewise: bool = False,
) -> Task:
    """Return a task of arrays in memory.

    Args:
        arrays: ``(X, y)`` or ``(X, y, X_test, y_test)``, arrays or tensors, or a function that
            returns them. X is [n, k], [n, h, w] or [n, c, h, w]; whole numbers from 0 to 255 as
            uint8, or other real numbers, which become float32. y has the classes [n] or [n, 1],
            whole numbers from 0; there are at most as many as samples. Without a test set, a random
            fifth of the samples is held out, the same for every run. A ``torch.utils.data.Dataset``
            of pairs may replace X and y; it is read once, into memory.
        name: The task's name in error messages.
        defaults: The defaults of a run.
        featurewise: True to normalise each column of a table (and each pixel) by its own mean and
            deviation. A table is one channel otherwise, so all columns have the same ones.
    """

    def load() -> Images:
        return images_of(arrays() if callable(arrays) else arrays, name, featurewise)

    return Task(defaults, lambda: load().tensors(), arrays=load)


def images_of(arrays: Any, name: str, featurewise: bool = False) -> Images:
    """Return NumPy's arrays as labelled images, normalised by the training set.

    Raises:
        SpecError: The arrays do not match, are not finite, have masked values, do not fit single
            precision, or are not samples and labels.
    """
    sets = [arrays] if _is_dataset(arrays) else list(arrays)
    arrays = [
        part for data in sets for part in (_stacked(data, name) if _is_dataset(data) else (data,))
    ]
    if len(arrays) not in (2, 4):
        raise SpecError(
            f"task={name}: {len(arrays)} arrays were given. Try: (X, y) or (X, y, X_test, "
            "y_test), or a dataset"
        )
    x, y = _samples(arrays[0], name), _labels(arrays[1], name)
    _check_lengths(x, y, name)
    if len(arrays) == 4:
        x_test, y_test = _samples(arrays[2], name), _labels(arrays[3], name)
        _check_lengths(x_test, y_test, name)
    else:
        order = np.random.Generator(np.random.Philox(0)).permutation(len(x))
        count = max(1, round(TEST_SHARE * len(x)))
        x, y, x_test, y_test = (
            x[order[count:]],
            y[order[count:]],
            x[order[:count]],
            y[order[:count]],
        )
    notes: tuple[str, ...] = ()
    with np.errstate(all="ignore"):  # numbers that are not finite are refused below
        if featurewise and len(x) and x.shape[1:] == x_test.shape[1:]:
            centre = x.mean(0, dtype=np.float64)
            deviation = np.where(np.ptp(x, 0) > 0, x.std(0, dtype=np.float64), 1.0)
            x, x_test = (x - centre) / deviation, (x_test - centre) / deviation
        elif len(x) and (x.shape[2] == 1 or x.dtype != np.uint8):
            notes += _hidden(x, name)
        x, x_test = _single(x, name), _single(x_test, name)
    if not len(x) or not len(x_test) or x.shape[1:] != x_test.shape[1:] or x.dtype != x_test.dtype:
        raise SpecError(
            f"task={name}: {x.dtype} {list(x.shape)} for training and {x_test.dtype} "
            f"{list(x_test.shape)} for the test set do "
            "not match. Try: samples of one shape and type, at least one in each"
        )
    classes, samples = int(max(y.max(), y_test.max())) + 1, len(y) + len(y_test)
    if classes > samples:
        raise SpecError(
            f"task={name}: y has the label {classes - 1}, so there are {classes} classes of "
            f"{samples} samples. "
            "Try: whole numbers from 0 without gaps"
        )
    absent = np.setdiff1d(np.arange(classes), y)
    more = f" and {len(absent) - SHOWN} others" if len(absent) > SHOWN else ""
    listed = f"{', '.join(map(str, absent[:SHOWN]))}{more}"
    if len(absent):
        notes += (f"task={name}: no training sample has the label {listed}, of {classes} classes",)
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    mean, deviation = (
        x.mean((0, 2, 3), dtype=np.float64) / scale,
        x.std((0, 2, 3), dtype=np.float64) / scale,
    )
    channels, height, width = x.shape[1:]
    shape = ImageShape(channels, height, width, classes)
    std = tuple(float(value) or 1.0 for value in deviation)
    parts: Any = map(np.ascontiguousarray, (x, y, x_test, y_test))
    train_x, train_y, other_x, other_y = parts
    return Images(
        train_x,
        train_y,
        other_x,
        other_y,
        mean=tuple(map(float, mean)),
        std=std,
        shape=shape,
        scale=scale,
        notes=notes,
    )


def _is_dataset(given: Any) -> bool:
    return "torch" in sys.modules and isinstance(given, torch.utils.data.Dataset)


def _stacked(dataset: Any, name: str) -> tuple[Any, ...]:
    """Return the samples and labels of a dataset that has a length.

    Raises:
        SpecError: Its items are not pairs of a sample and a label, or samples differ in shape.
    """
    try:
        pairs = [dataset[place] for place in range(len(dataset))]
        samples, labels = [x for x, _ in pairs], [y for _, y in pairs]
        return tuple(
            np.ma.stack([np.ma.asarray(_pixels(part)) for part in parts])
            for parts in (samples, labels)
        )
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"task={name}: the dataset has no pairs of a sample and a class ({error}). Try: "
            "transform=ToTensor(), or arrays"
        ) from error


def _array(given: Any, what: str, name: str) -> np.ndarray[Any, Any]:
    if isinstance(given, list | tuple):
        given = [_pixels(part) for part in given]
    try:
        array = np.ma.asarray(given)
    # lists of several lengths; tensors of a GPU, or in bfloat16
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"task={name}: {what} is not an array ({first_line(error)}). Try: numpy.array({what})"
        ) from error
    if np.ma.is_masked(array):
        raise SpecError(
            f"task={name}: {what} has masked values. Try: only samples without them, or "
            f"{what}.filled(0)"
        )
    return np.asarray(array)


def _pixels(sample: Any) -> Any:
    """Return a picture of Pillow in colours, or with a palette, as RGB [3, h, w]; anything else
    unchanged.
    """
    if getattr(sample, "mode", None) not in COLOURS:
        return sample
    return np.asarray(sample.convert("RGB")).transpose(2, 0, 1)


def _samples(given: Any, name: str) -> np.ndarray[Any, Any]:
    """Return samples [n, c, h, w]."""
    x = _array(given, "X", name)
    shapes = "[n, k], [n, h, w] or [n, c, h, w]"
    if not 2 <= x.ndim <= 4 or 0 in x.shape[1:] or x.dtype.kind not in "buif":
        raise SpecError(f"task={name}: X is {x.dtype} {list(x.shape)}. Try: real numbers {shapes}")
    if x.ndim == 4 and x.shape[3] <= FEW < min(x.shape[1:3]):
        raise SpecError(
            f"task={name}: X is {list(x.shape)}, which looks like [n, h, w, c]; channels come "
            "first. "
            f"Try: X.transpose(0, 3, 1, 2), or X.transpose(0, 1, 3, 2) if it is [n, c, h, w]"
        )
    x = x.astype(np.float32) if x.dtype == np.bool_ else x
    return x.reshape(len(x), *(1,) * (4 - x.ndim), *x.shape[1:])


def _single(x: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return samples [n, c, h, w] as uint8 or float32.

    Raises:
        SpecError: Numbers are not finite in single precision, or its rounding hides how a channel
            varies.
    """
    if x.dtype == np.uint8 or not len(x):
        return x
    single = x.astype(np.float32)
    if not np.isfinite(single).all():
        raise SpecError(
            f"task={name}: X has values that are not finite in single precision. Try: finite "
            "numbers"
        )
    for values, rounded in zip(x.swapaxes(0, 1), single.swapaxes(0, 1), strict=True):
        deviation = values.std(dtype=np.float64) * bool(np.ptp(values))
        if (values - rounded).std(dtype=np.float64) > SMALL * deviation > 0:
            raise SpecError(
                f"task={name}: X varies by {deviation:.3g} about {values.mean():.9g}, which single "
                f"precision does not resolve. Try: X - X.mean(0) of float64, or {FEATUREWISE}"
            )
    return single


def _hidden(x: np.ndarray[Any, Any], name: str) -> tuple[str, ...]:
    """Return a note if columns of a table [n, 1, 1, k], or pixels of pictures [n, c, h, w], vary
    far less than their channel.
    """
    what, share = ("column", SMALL) if x.shape[1:3] == (1, 1) else ("pixel", SMALL**3)
    least = share * x.std((0, 2, 3), dtype=np.float64, keepdims=True)[0]
    small = (x.std(0, dtype=np.float64) < least) & (np.ptp(x, 0) > 0)
    if not small.any():
        return ()
    note = (
        f"task={name}: all {what}s of X have one mean and deviation, by which {small.sum()} of "
        f"{small.size} {what}s hardly vary, such as {what} {small.argmax()}. Try: {FEATUREWISE}"
    )
    return (note,)


def _labels(given: Any, name: str) -> np.ndarray[Any, Any]:
    y = _array(given, "y", name)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() < 2**31):
        ends = f" from {y.min()} to {y.max()}" if y.size and y.dtype.kind in "iuf" else ""
        whole = y.dtype.kind == "b" or (y.dtype.kind == "f" and not (y % 1).any())
        other = (
            ", such as y.argmax(1)"
            if y.ndim == 2 and len(y) > 1
            else ", such as y.astype(int)"
            if whole
            else ""
        )
        raise SpecError(
            f"task={name}: y is {y.dtype} {list(y.shape)}{ends}. Try: whole numbers from 0, "
            f"one for each sample{other}"
        )
    return y.astype(np.int64)


def _check_lengths(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], name: str) -> None:
    if len(x) != len(y):
        raise SpecError(
            f"task={name}: {len(x)} samples and {len(y)} labels. Try: one label for each sample"
        )
