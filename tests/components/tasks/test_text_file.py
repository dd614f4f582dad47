"""Characters of a text: windows and labels by hand, bad files, and whole runs."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from dynabro_cli import RunSpec, simulate
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import Images, TaskSetting
from dynabro_cli.core import events
from dynabro_cli.core.errors import NotFoundError, SpecError
from dynabro_cli.experiment.resolve import resolve


def load(folder: Path, text: str) -> Images:
    images = REGISTRIES["tasks"].parse(text).build(TaskSetting(folder)).load()
    assert isinstance(images, Images)
    return images


def test_windows(tmp_path: Path) -> None:
    """30 characters of the alphabet a, b, c: 27 to train on, and the last three, with one window of
    two characters.

    The mark of UTF-8 that some editors write is not one of them.
    """
    (tmp_path / "short.txt").write_text("abc" * 9 + "bca", encoding="utf-8-sig")
    images = load(tmp_path, "text-file:path=short.txt,context=2")
    assert images.train_images.shape == (25, 1, 1, 2)
    assert images.train_images[:3].flatten(1).tolist() == [[0, 1], [1, 2], [2, 0]]
    assert images.train_labels[:3].tolist() == [2, 0, 1]
    assert (images.test_images.flatten(1).tolist(), images.test_labels.tolist()) == ([[1, 2]], [0])
    assert (images.shape.width, images.shape.classes, images.scale, images.mean, images.std) == (
        2,
        3,
        1.0,
        (0.0,),
        (1.0,),
    )


def test_test_windows_do_not_overlap(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(chr(97 + i % 26) for i in range(1000)))
    images = load(tmp_path, "text-file:path=t.txt,context=9")
    assert len(images.test_labels) == (100 - 10) // 9 + 1
    assert len(images.train_labels) == 900 - 9


@pytest.mark.parametrize(("length", "context"), [(1000, 9), (1001, 9), (999, 10), (30, 2), (21, 1)])
def test_look_counts_without_torch(tmp_path: Path, length: int, context: int) -> None:
    """A task's text gives the numbers of its arrays, and torch is not loaded for them:
    a report asks for the number of classes of each run that diverged.
    """
    (tmp_path / "t.txt").write_text("".join(chr(97 + i % 26) for i in range(length)))
    text = f"text-file:path=t.txt,context={context}"
    images = load(tmp_path, text)
    program = f"""
import pathlib, sys
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.tasks._api import TaskSetting
shape, train, test = REGISTRIES["tasks"].parse({text!r}).build(TaskSetting(pathlib.Path({str(tmp_path)!r}))).look()
print([shape.width, shape.classes, train, test], "torch" in sys.modules)
"""  # noqa: E501
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    numbers = [images.shape.width, images.shape.classes]
    numbers += [len(images.train_labels), len(images.test_labels)]
    assert printed == f"{numbers} False\n"


def test_the_text_that_comes_with_python(tmp_path: Path) -> None:
    images = load(tmp_path, "text-file")
    assert len(images.train_labels) > 100_000
    assert 60 < images.shape.classes <= 256


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    for name, mark in (("t.txt", b""), ("marked.txt", b"\xef\xbb\xbf")):
        (tmp_path / name).write_bytes(mark + b"abc" * 50)
    plain, marked = (
        load(tmp_path, f"text-file:path={name},context=2") for name in ("t.txt", "marked.txt")
    )
    assert marked.train_images.equal(plain.train_images)
    assert marked.shape.classes == 3


def test_a_file_called_python_is_not_the_help_topics(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("abc" * 50)
    assert load(tmp_path, "text-file:path=./python,context=2").shape.classes == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"", "has 0 characters, too few for context=32"),
        (b"abc", "has 3 characters, too few for context=32"),
        (b"\xff\xfe" * 500, "is not text in UTF-8"),
        (
            "".join(map(chr, range(0x4E00, 0x4E00 + 1000))).encode(),
            "has 1000 different characters; 256 are the most",
        ),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(NotFoundError, match=said):
        load(tmp_path, "text-file:path=t.txt")


def test_a_model_of_text_does_not_read_images() -> None:
    with pytest.raises(SpecError, match="reads windows of characters"):
        resolve(RunSpec(task="digits", model="gpt"))


def test_a_width_that_the_heads_do_not_share(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"width=10 is not a multiple of heads=4. Try: width=12"):
        list(simulate(RunSpec(task="text-file", model="gpt:width=10"), data_dir=tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields", [{}, {"data": "sorted"}, {"attack": "label-flip"}, {"precision": "bf16"}]
)
def test_it_learns(tmp_path: Path, fields: dict[str, str]) -> None:
    """A text with a period of 4: after 150 rounds the next character is nearly certain; a guess has
    log 4 = 1.39.
    """
    (tmp_path / "t.txt").write_text("abcd" * 300)
    spec = RunSpec(
        task="text-file:path=t.txt,context=4",
        model="gpt:width=8,layers=1,heads=2",
        method="sgd",
        aggregator="cwmed",
        workers=3,
        byzantine=1,
        batch_size=8,
        budget=150,
        learning_rate=0.5,
        validation=0.1,
        **{"attack": "ipm", **fields},
    )
    started, *_, last = simulate(spec, data_dir=tmp_path, compile="off")
    assert isinstance(started, events.Started)
    assert "shared pass" in str(started.record["versions"])
    assert isinstance(last, events.Finished)
    assert last.loss is not None
    assert last.loss < math.log(4) / 3 or fields.get("data") == "sorted"
