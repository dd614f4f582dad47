"""Tiny ImageNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dynabro_cli.components.tasks import cifar10
from dynabro_cli.components.tasks._api import (
    REGISTRY,
    Images,
    ImageShape,
    Task,
    TaskSetting,
    check_memory,
)
from dynabro_cli.components.tasks.image_folder import Pictures, is_image, read_pictures
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.limits import LARGEST_TEXT
from dynabro_cli.core.machine.strangers_files import files_under, read_regular
from dynabro_cli.core.registration import NoParameters

FOLDER = "tiny-imagenet-200"
CLASSES, SIZE, TRAIN_SIZE, TEST_SIZE = 200, 64, 100_000, 10_000
SHAPE = ImageShape(channels=3, height=SIZE, width=SIZE, classes=CLASSES)
MEAN, STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
DEFAULTS = replace(cifar10.DEFAULTS, model="resnet18")


@REGISTRY.register(
    "tiny-imagenet", reference="Le & Yang, Stanford CS 231N, 2015; a part of ImageNet"
)
def tiny_imagenet(_: NoParameters, setting: TaskSetting) -> Task:
    """Tiny ImageNet: 110,000 colour pictures of 64 x 64 pixels in 200 classes, with CIFAR-10's
    settings and ResNet-18.

    The task reads the unpacked folder <data folder>/tiny-imagenet-200 and downloads nothing. It
    trains on train/CLASS/images/*.JPEG and tests on val/images with val/val_annotations.txt,
    because the labels of the data set's test set are not public. Grey pictures become colour
    pictures; training pictures are flipped at random. No checksums are published; a run's
    ``code_digests`` have the digest of what it has read.

    Raises NotFoundError if the folder is missing, incomplete or damaged, or does not fit into
    memory.
    """

    def load() -> Images:
        root = setting.data_dir / FOLDER
        train, test = find(root)
        counts = len(train.paths), len(test.paths), len(train.classes)
        if counts != (TRAIN_SIZE, TEST_SIZE, CLASSES):
            raise NotFoundError(
                f"task=tiny-imagenet: {root} has {counts[0]} training and {counts[1]} test "
                f"pictures in {counts[2]} classes, "
                f"instead of {TRAIN_SIZE}, {TEST_SIZE} and {CLASSES}. Try: unpack it again"
            )
        check_memory(f"{root}: its images need", train.bytes + test.bytes)
        return Images(
            *read_pictures(train), *read_pictures(test), mean=MEAN, std=STD, shape=SHAPE, flip=True
        )

    return Task(DEFAULTS, load, SHAPE, TRAIN_SIZE, test_size=TEST_SIZE, keep=True)


def find(root: Path) -> tuple[Pictures, Pictures]:
    """Return the training and the test pictures of an unpacked folder, before they are read.

    Raises:
        NotFoundError: The folder does not have this layout.
    """
    try:
        classes = sorted(entry.name for entry in (root / "train").iterdir() if entry.is_dir())
        numbers = {name: number for number, name in enumerate(classes)}
        paths, labels = list[str](), list[int]()
        for name in classes:
            images = files_under(root / "train" / name / "images", is_image)
            paths += images
            labels += [numbers[name]] * len(images)
        text = read_regular(root / "val" / "val_annotations.txt", LARGEST_TEXT).decode()
        rows = [line.split("\t") for line in text.splitlines() if line]
        test = [str(root / "val" / "images" / row[0]) for row in rows]
        of_test = [numbers[row[1]] for row in rows]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise NotFoundError(
            f"task=tiny-imagenet: {root.resolve()} cannot be read ({error}). Try: unpack "
            "tiny-imagenet-200.zip there, or "
            "another --data-dir"
        ) from error
    return Pictures(paths, labels, classes, (SIZE, SIZE)), Pictures(
        test, of_test, classes, (SIZE, SIZE)
    )
