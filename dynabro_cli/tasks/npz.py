"""A user's data in a file of NumPy."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynabro_cli.components import parameter
from dynabro_cli.deferred import np
from dynabro_cli.errors import NotFoundError, SpecError
from dynabro_cli.machine.strangers_files import open_regular
from dynabro_cli.tasks._api import REGISTRY, Task, TaskSetting
from dynabro_cli.tasks._arrays import make_task

NAMES = ("X", "y", "X_test", "y_test")


@dataclass(frozen=True)
class Parameters:
    file: str = parameter(help="file of numpy.savez; relative to the current folder, or to the folder of data sets")


@REGISTRY.register("npz", Parameters, reference="NumPy's format of archives")
def npz(parameters: Parameters, setting: TaskSetting) -> Task:
    """Your own arrays: ``X`` and ``y``, and optionally ``X_test`` and ``y_test``, from a file of ``numpy.savez``.

    X is [n, k], [n, h, w] or [n, c, h, w], of uint8 or floats; y has the classes, from 0. Without a test set, a random fifth of
    the samples is held out, the same for every run. A run's key depends on the name of the file, not on its content.
    """
    return make_task(lambda: _load(parameters.file, setting.data_dir), name=f"npz:file={parameters.file}")


def _load(name: str, folder: Path) -> Sequence[Any]:
    """Return the file's arrays; nothing in it is executed."""
    given = Path(os.path.expanduser(name))
    path = given if given.is_file() else folder / given
    try:
        with open_regular(path) as raw, np.load(raw, allow_pickle=False) as file:
            return [file[one] for one in (NAMES if "X_test" in file else NAMES[:2])]
    except FileNotFoundError as error:
        raise NotFoundError(
            f"task=npz: {given} does not exist, nor does {path}. Try: numpy.savez({name!r}, X=X, y=y)"
        ) from error
    except (OSError, KeyError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise SpecError(f"task=npz: {path} has no arrays X and y ({error}). Try: numpy.savez({name!r}, X=X, y=y)") from error
