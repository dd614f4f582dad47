"""Data sets of torchvision: read from the data folder, or downloaded into it on first use."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.lazy import torch
from dynabro_cli.core.machine.cache_folder import locked

if TYPE_CHECKING:
    from torch import Tensor

Split: TypeAlias = "tuple[Tensor, Tensor]"
UNREADABLE = (RuntimeError, OSError, ValueError, EOFError, AssertionError, KeyError, TypeError)
"""Exceptions of torchvision for files that are missing or damaged, or cannot be downloaded."""


def load_splits(
    name: str, data_dir: Path, train_size: int, test_size: int, **options: str
) -> tuple[Split, Split]:
    """Load ``torchvision.datasets.<name>`` as uint8 images [n, c, h, w] and int64 labels [n], for
    training and testing.

    The files are read from ``data_dir``, in torchvision's layout; missing files are downloaded and
    checked against their published checksums. torchvision checks files that are there for the
    CIFARs only. ``options`` are options of the data set, such as ``split``.

    Raises:
        NotFoundError: The files are missing and cannot be downloaded, or are damaged.
    """
    return _load(name, data_dir, True, train_size, options), _load(
        name, data_dir, False, test_size, options
    )


def _load(name: str, data_dir: Path, train: bool, size: int, options: dict[str, str]) -> Split:
    from torchvision import datasets

    kind: Any = functools.partial(getattr(datasets, name), **options)
    try:
        data = kind(root=data_dir, train=train, download=False)
    except UNREADABLE:
        data = _download(kind, name, data_dir, train)
    images = torch.as_tensor(data.data)
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    labels = torch.as_tensor(data.targets).long()
    if len(images) != size or len(labels) != size or images.dtype != torch.uint8:
        raise NotFoundError(
            f"{name} in {data_dir} is damaged: {len(images)} images and {len(labels)} labels "
            f"instead of {size}; "
            "remove its folder and run again to download it again"
        )
    return images, labels


def _download(kind: Any, name: str, data_dir: Path, train: bool) -> Any:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        # stdout is for data
        with contextlib.redirect_stdout(io.StringIO()), locked(data_dir):
            with contextlib.suppress(*UNREADABLE):
                # another process downloaded it meanwhile
                return kind(root=data_dir, train=train, download=False)
            return kind(root=data_dir, train=train, download=True)
    except UNREADABLE as error:
        wrong = _unreadable(kind.func, data_dir, name)
        if wrong is not None:
            raise damaged(wrong, "it cannot be read or has another checksum") from error
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise NotFoundError(
            f"{name} was not found under {data_dir.resolve()} and could not be downloaded "
            f"({reason}); put its files there in "
            f"torchvision's layout ({name}(root=...)), or name the folder that has them with "
            "--data-dir or DYNABRO_DATA"
        ) from error


def _unreadable(kind: Any, data_dir: Path, name: str) -> Path | None:
    """Return the first file of a data set that is there and cannot be read, or has another checksum
    than published.
    """
    from torchvision.datasets import mnist

    if hasattr(kind, "train_list"):  # a CIFAR
        labels = kind.meta["filename"], kind.meta["md5"]
        return wrong_file(data_dir / kind.base_folder, (*kind.train_list, *kind.test_list, labels))
    for path in sorted((data_dir / name / "raw").glob("*-ubyte")):
        try:
            (mnist.read_label_file if "labels" in path.name else mnist.read_image_file)(str(path))
        except UNREADABLE:
            return path
    return None


def wrong_file(folder: Path, checksums: Iterable[tuple[str, str | None]]) -> Path | None:
    """Return the first file in ``folder`` whose MD5 is not the published one; None if all are right
    or missing.
    """
    from torchvision.datasets.utils import check_integrity

    files = ((folder / name, md5) for name, md5 in checksums)
    return next(
        (path for path, md5 in files if path.is_file() and not check_integrity(path, md5)), None
    )


def damaged(path: Path, why: str) -> NotFoundError:
    """Return the error of a file that is there, but is not the data set's."""
    return NotFoundError(
        f"{path} is damaged: {why}. Try: remove the file and run again, which downloads it; "
        "for data of your own --task npz:file=FILE or image-folder:name=FOLDER"
    )
