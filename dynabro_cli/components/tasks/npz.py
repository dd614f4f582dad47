"""A user's data in a file of NumPy."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynabro_cli.components.tasks._api import REGISTRY, Task, TaskSetting, check_memory
from dynabro_cli.components.tasks._arrays import make_task
from dynabro_cli.core.errors import NotFoundError, SpecError, first_line
from dynabro_cli.core.lazy import np
from dynabro_cli.core.machine.strangers_files import open_regular
from dynabro_cli.core.registration import parameter


def _folder(setting: TaskSetting, name: str) -> Path:
    """Return the folder that the file's path is relative to."""
    return Path.cwd() if os.path.lexists(os.path.expanduser(name)) else setting.data_dir


@dataclass(frozen=True)
class Parameters:
    file: str = parameter(
        folder=_folder,
        help="file of numpy.savez; relative to the current folder, or to the folder of data sets",
    )
    X: str = parameter("X", later=True, help="name of the array of samples in the file")
    y: str = parameter("y", later=True, help="name of the array of labels")
    X_test: str = parameter("X_test", later=True, help="name of the array of test samples")
    y_test: str = parameter("y_test", later=True, help="name of the array of test labels")
    featurewise: bool = parameter(
        False,
        later=True,
        help="each column of a table (and each pixel) has its own mean and deviation; false: each "
        "channel, and a table is one channel",
    )


@REGISTRY.register("npz", Parameters, reference="NumPy's format of archives")
def npz(parameters: Parameters, setting: TaskSetting) -> Task:
    """Your own arrays: ``X`` and ``y``, and optionally ``X_test`` and ``y_test``, from a file of
    ``numpy.savez``.

    X is [n, k], [n, h, w] or [n, c, h, w], of bytes (uint8) or other real numbers; y has the
    classes [n] or [n, 1], whole numbers from 0. Without a test set, a random fifth of the samples
    is held out, the same for every run. Arrays of other names are chosen by parameters, such as
    X=x_train,y=y_train,X_test=x_test,y_test=y_test for Keras's mnist.npz.

    A run's key has the name of the file, and its ``code_digests`` a digest of the content. Nothing
    in the file is executed: arrays of Python objects are refused.

    Raises NotFoundError if the file is missing, damaged, too large for the memory, or not an
    archive of numpy.savez. Raises SpecError if it does not have the arrays, or if they are not
    samples and labels (see ``make_task``).
    """
    return make_task(
        lambda: _load(parameters, setting),
        name=f"npz:file={parameters.file}",
        featurewise=parameters.featurewise,
    )


def _load(parameters: Parameters, setting: TaskSetting) -> Sequence[Any]:
    """Return the file's arrays."""
    name = parameters.file
    path = _folder(setting, name) / os.path.expanduser(name)
    train, test = (parameters.X, parameters.y), (parameters.X_test, parameters.y_test)
    advice = f"Try: numpy.savez({name!r}, X=X, y=y)"
    try:
        with open_regular(path) as opened:
            if not zipfile.is_zipfile(opened):
                raise NotFoundError(
                    f"task=npz: {path} is not an archive of numpy.savez, or is damaged. {advice}"
                )
            with np.load(opened, allow_pickle=False) as file:
                wanted = (
                    (*train, *test) if {*test} & {*file} or test != ("X_test", "y_test") else train
                )
                missing = [array for array in wanted if array not in file]
                if missing:
                    raise SpecError(
                        f"task=npz: {path} has no array {missing[0]}; it has "
                        f"{', '.join(file) or 'no arrays'}. "
                        f"Try: npz:file={name},X=NAME,y=NAME, or {advice.removeprefix('Try: ')}"
                    )
                sizes = {
                    info.filename.removesuffix(".npy"): info.file_size
                    for info in file.zip.infolist()
                }
                size = sum(sizes[array] for array in wanted)
                check_memory(f"task=npz: {path}: its arrays need", size)
                arrays = [file[array] for array in wanted]
                # single and double precision of all values, whatever their type
                values = sum(array.size * (2 if array.dtype == np.uint8 else 8) for array in arrays)
                check_memory(f"task=npz: {path}: its numbers need", values)
                return arrays
    except (NotFoundError, SpecError):
        raise
    except FileNotFoundError as error:
        raise NotFoundError(
            f"task=npz: {name} does not exist in {Path.cwd()}, nor in {setting.data_dir}. "
            f"{advice}, or another path"
        ) from error
    except Exception as error:  # decoding a damaged file can raise nearly anything
        raise NotFoundError(
            f"task=npz: {path} cannot be read ({first_line(error) or type(error).__name__}). "
            f"{advice}"
        ) from error
