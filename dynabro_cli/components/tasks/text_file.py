"""Characters of a text."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynabro_cli.components.tasks._api import (
    REGISTRY,
    Defaults,
    Images,
    ImageShape,
    Task,
    TaskSetting,
    in_data_dir,
)
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.lazy import np
from dynabro_cli.core.machine.strangers_files import read_regular
from dynabro_cli.core.registration import parameter

PYTHON = "python"
MOST_BYTES = 1 << 26
MOST_CHARACTERS = 256
"""Largest number of different characters: their numbers are bytes."""
TEST_SHARE = 0.1
DEFAULTS = Defaults(
    model="gpt",
    workers=17,
    byzantine=8,
    budget=2000,
    batch_size=16,
    learning_rate=0.1,
    mlmc_learning_rate=0.3,
    lr_drop="0.8:0.1",
    weight_decay=0.0,
    eval_every=200,
)


@dataclass(frozen=True)
class Parameters:
    path: str = parameter(
        PYTHON,
        folder=in_data_dir,
        help="the file, from the data folder if relative; python: the help topics that come "
        "with Python",
    )
    context: int = parameter(
        32,
        minimum=1,
        maximum=4096,
        help="characters of a window, from which the next one is predicted",
    )


@REGISTRY.register(
    "text-file",
    Parameters,
    reference="character-level language modelling; compare Karpathy's char-rnn, 2015",
)
def text_file(parameters: Parameters, setting: TaskSetting) -> Task:
    """Text file: predict a character from the ``context`` characters before it; nothing is
    downloaded.

    A sample is a window of the text, and its label is the character after it. Training samples
    begin at every character of the first nine tenths of the text; test samples are windows of the
    last tenth that do not overlap. The loss is the mean cross-entropy; divided by log 2 = 0.693, it
    is in bits per character (SELECT final_loss/0.6931 FROM runs). The classes are the text's
    characters in the order of their code points, at most 256.

    A byte order mark at the beginning is not part of the text. The path is part of the run's key;
    the content has a digest in ``code_digests``. The text of path=python depends on Python's
    version.

    Raises NotFoundError if the file is missing, is not text in UTF-8, is too short or too long, or
    has more than 256 different characters.
    """

    def encode() -> tuple[bytearray, int, int]:
        """Return the text as numbers of characters, the number of characters for training, and the
        number of classes; torch is not loaded.
        """
        text = _text(parameters.path, setting.data_dir)
        characters = sorted(set(text))
        if len(characters) > MOST_CHARACTERS:
            raise NotFoundError(
                f"task=text-file: {parameters.path} has {len(characters)} different "
                f"characters; {MOST_CHARACTERS} are the "
                "most. Try: a text in one script"
            )
        numbers = {character: number for number, character in enumerate(characters)}
        written = bytearray(numbers[character] for character in text)
        split, context = len(written) - int(TEST_SHARE * len(written)), parameters.context
        if min(split, len(written) - split) <= context:
            raise NotFoundError(
                f"task=text-file: {parameters.path} has {len(written)} characters, too few for "
                f"context={context}. "
                f"Try: a text of more than {int((context + 1) / TEST_SHARE)} characters"
            )
        return written, split, len(characters)

    def arrays() -> Images:
        written, split, classes = encode()
        numbers, context = np.frombuffer(written, np.uint8), parameters.context
        train, test = (
            _windows(numbers[:split], context, 1),
            _windows(numbers[split:], context, context),
        )
        return Images(*train, *test, (0.0,), (1.0,), ImageShape(1, 1, context, classes), scale=1.0)

    def look() -> tuple[ImageShape, int, int]:
        (written, split, classes), context = encode(), parameters.context
        tests = (len(written) - split - 1) // context
        return ImageShape(1, 1, context, classes), split - context, tests

    return Task(DEFAULTS, lambda: arrays().tensors(), look=look, arrays=arrays)


def _windows(numbers: Any, context: int, step: int) -> tuple[Any, Any]:
    """Return windows uint8 [n, 1, 1, context], views of the text, and the characters after them,
    int64 [n].
    """
    count = (len(numbers) - context - 1) // step + 1
    # the digest has these steps, torch's for axes of one element
    steps = (step, context + 1, context + 1, 1)
    windows = np.lib.stride_tricks.as_strided(numbers, (count, 1, 1, context), steps)
    return windows, numbers[context::step].astype(np.int64)


def _text(path: str, data_dir: Path) -> str:
    if path == PYTHON:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        return "".join(topics[name] for name in sorted(topics))
    file = data_dir / os.path.expanduser(path)
    try:
        return read_regular(file, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise NotFoundError(
            f"task=text-file: {file} cannot be read ({error.strerror}). Try: a whole path, or "
            "--data-dir FOLDER"
        ) from error
    except UnicodeDecodeError as error:
        raise NotFoundError(
            f"task=text-file: {file} is not text in UTF-8 ({error.reason}). Try: another file"
        ) from error
    except ValueError as error:
        raise NotFoundError(
            f"task=text-file: {file}: {error}. Try: a part of it as another file"
        ) from error
