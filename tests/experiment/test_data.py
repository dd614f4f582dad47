"""The digest of data: what changes it, and how it is known without reading the data again."""

from __future__ import annotations

import http.client
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError

from dynabro_cli.components.tasks import _api, digits, image_folder, mnist
from dynabro_cli.components.tasks._api import REGISTRY, Images, digest_of
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.events import Checkpointed, Event, Started
from dynabro_cli.core.registration.plugins import load_plugin
from dynabro_cli.experiment import data, resolve
from dynabro_cli.experiment.data import at_hand
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.simulation.setup import simulate_run
from tests.own import fresh

TASK = "npz:file=d.npz"
X = np.arange(48, dtype=np.float32).reshape(12, 4)
Y = np.arange(12) % 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, and a cache of its own, in which files count as unchanged at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "SETTLED_NS", 0)
    return tmp_path


def save(folder: Path, save: Callable[..., None] = np.savez, **arrays: Any) -> None:
    """Write the data; a second time with the size and time of the first, as of a copy that keeps
    times.
    """
    file = folder / "d.npz"
    before = file.stat() if file.exists() else None
    save(file, **{"X": X, "y": Y, "X_test": X[:6], "y_test": Y[:6]} | arrays)
    if before is not None:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "arrays",
    [
        {"y": Y[::-1]},
        {"X_test": X[6:]},
        {"y_test": Y[5::-1]},
        {"X": X[::-1], "y": Y[::-1]},
        {"X": X + (X == 5)},
    ],
    ids=["labels", "test split", "labels of the test split", "order", "one number"],
)
def test_any_change_of_the_arrays_is_other_data(arrays: dict[str, Any], folder: Path) -> None:
    save(folder)
    first = at_hand(TASK, folder)
    assert first is not None
    save(folder, **arrays)
    assert at_hand(TASK, folder) not in (None, first)
    save(folder, np.savez_compressed)
    assert at_hand(TASK, folder) == first, "the same arrays in another file"


@pytest.mark.parametrize("task", ["cifar10", "fashion-mnist"])
def test_only_runs_download(task: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that read results look for the data that are there."""
    asked: list[str] = []

    def connect(self: http.client.HTTPConnection) -> None:
        asked.append(self.host)
        raise OSError("no network")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    monkeypatch.setattr(http.client.HTTPSConnection, "connect", connect)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert at_hand(task, folder) is None
    assert asked == []
    with pytest.raises(NotFoundError, match="could not be downloaded"):
        data.read(REGISTRY.parse(task), folder)
    assert asked


def test_files_that_do_not_fit_into_memory_are_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may take no room on the disk, and torchvision reads all of them."""
    importlib.import_module("torchvision.datasets")  # its own files do not matter
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, _ in mnist.CHECKSUMS:
        (raw / name).write_bytes(bytes(1000))
    file = raw / "train-images-idx3-ubyte"
    os.truncate(file, 1001)
    monkeypatch.setattr(_api, "free_host_memory", lambda: _api.COPIES * 1000)
    with pytest.raises(NotFoundError, match=f"^{file}: its content needs about .* GB of memory"):
        data.read(REGISTRY.parse("mnist"), folder)


def test_data_that_have_not_changed_are_not_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder)
    first = at_hand(TASK, folder)
    program = f"""
import pathlib, sys
from dynabro_cli.experiment.data import at_hand
print(at_hand({TASK!r}, pathlib.Path({str(folder)!r})), "torch" in sys.modules)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [first, "False"]
    monkeypatch.setattr(data, "SETTLED_NS", 10**18)
    monkeypatch.setattr(data, "_remember", None)  # a file that has just changed is not remembered
    save(folder, y=Y[::-1])
    assert at_hand(TASK, folder) not in (None, first)


@pytest.mark.parametrize(
    "task",
    [TASK, f"{TASK},featurewise=true", "text-file:context=16", "text-file:path=a.txt,context=3"],
)
def test_arrays_have_the_digest_of_their_tensors_without_torch(task: str, folder: Path) -> None:
    save(folder)
    (folder / "a.txt").write_text("to be or not to be " * 9)
    program = f"""
import pathlib, sys
from dynabro_cli.experiment.data import at_hand
print(at_hand({task!r}, pathlib.Path({str(folder)!r})), "torch" in sys.modules)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    images = data.read(REGISTRY.parse(task), folder)
    assert isinstance(images, Images)
    assert isinstance(images.train_images, torch.Tensor)
    assert answer.stdout.split() == [images.digest, "False"]


def test_data_that_are_not_at_hand_are_not_known(folder: Path) -> None:
    save(folder)
    assert at_hand(TASK, folder / "elsewhere") is None
    (folder / "d.npz").write_text("not arrays")
    assert at_hand(TASK, folder) is None
    (folder / "d.npz").unlink()
    assert at_hand(TASK, folder) is None
    assert at_hand("nobodys-task", folder) is None
    assert at_hand("quadratic", folder) is None
    assert at_hand("digits:inputs=unit", folder) == digits.DIGEST


def test_a_file_that_is_added_to_a_folder_is_other_data(folder: Path) -> None:
    from PIL import Image

    for split, label, number in (
        (split, label, number)
        for split in ("train", "test")
        for label in "ab"
        for number in range(3)
    ):
        path = folder / "images" / split / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), number).save(path)
    task = "image-folder:name=images"
    first = at_hand(task, folder)
    Image.new("L", (2, 2), 7).save(folder / "images" / "train" / "a" / "7.png")
    more = at_hand(task, folder)
    os.rename(
        folder / "images" / "train" / "a" / "7.png", folder / "images" / "train" / "a" / "-.png"
    )
    assert len({None, first, more, at_hand(task, folder)}) == 4, "a new name is a new order"


def test_decoded_images_are_kept_and_equal_bit_for_bit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JPEGs are decoded again only if a file has changed, or if the kept images are damaged or of
    other code.
    """
    decoded: list[int] = []
    read = image_folder.read_pictures
    monkeypatch.setattr(
        image_folder, "read_pictures", lambda found: decoded.append(len(found.paths)) or read(found)
    )

    def picture(name: str, seed: int) -> None:
        file = folder / "p" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(256, size=(8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, quality=90)

    def images(decodes: bool) -> Images:
        decoded.clear()
        found = data.read(REGISTRY.parse("image-folder:name=p"), folder)
        assert isinstance(found, Images)
        assert decoded == ([4, 2] if decodes else [])
        return found

    for number, name in enumerate(
        f"{part}/{label}/{k}.jpg" for part in ("train", "test") for label in "ab" for k in range(2)
    ):
        if "test" not in name or "1.jpg" not in name:
            picture(name, number)
    first = images(True)
    again = images(False)
    for name, value in vars(first).items():
        assert (
            torch.equal(value, getattr(again, name))
            if isinstance(value, torch.Tensor)
            else value == getattr(again, name)
        )
    picture("train/a/0.jpg", 99)
    changed = images(True)
    assert changed.digest == images(False).digest != first.digest
    (kept,) = (folder / "cache" / "dynabro" / "images").iterdir()
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert images(True).digest == changed.digest
    kept.write_text("not arrays")
    assert images(True).digest == images(False).digest == changed.digest
    with monkeypatch.context() as patch:
        patch.setattr(data, "of_entry", lambda _: "other code")
        assert images(True).digest == images(False).digest == changed.digest
    assert images(True).digest == images(False).digest == changed.digest, (
        "other code may have made another mean"
    )
    monkeypatch.setattr("safetensors.torch.save_file", _full)
    picture("train/a/0.jpg", 98)
    assert images(True).digest == images(True).digest != changed.digest


def _full(*_: object) -> None:
    raise SafetensorError("no space left on device")


def test_others_wait_for_images_that_are_being_decoded(folder: Path) -> None:
    program = f"""
import pathlib
from dynabro_cli.experiment import data
print("ready", flush=True)
with data._alone(pathlib.Path({str(folder)!r})):
    print("alone", flush=True)
"""
    with data._alone(folder):
        other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.communicate(timeout=0.5)
    assert other.communicate()[0] == "alone\n"


def test_a_text_is_its_windows(folder: Path) -> None:
    (folder / "a.txt").write_text("to be or not to be " * 9)
    first = at_hand("text-file:path=a.txt,context=4", folder)
    assert at_hand("text-file:path=a.txt,context=5", folder) != first
    (folder / "a.txt").write_text("to be or not to be " * 8 + "to be or not to eb ")
    assert at_hand("text-file:path=a.txt,context=4", folder) not in (None, first)


def test_the_digest_of_an_array_is_of_its_type_shape_and_values() -> None:
    array = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    turned = array.transpose(0, 2)
    assert digest_of(turned) == digest_of(turned.contiguous())
    windows = torch.arange(6).unfold(0, 3, 1)
    others = [
        array,
        array.long(),
        array.half(),
        array.bfloat16(),
        array.reshape(3, 2, 4),
        turned,
        windows,
        windows.contiguous() + 1,
        torch.zeros(0, 3),
    ]
    assert len({digest_of(other) for other in others}) == len(others)


NATIVE = '''"""Arrays that are read by native code."""

from safetensors.numpy import load_file

from dynabro_cli.plugins import task


@task("native", reference="a test")
def native():
    """Arrays of a file."""
    arrays = load_file("native.safetensors")
    return arrays["X"], arrays["y"]
'''


def test_files_that_a_users_task_reads_by_native_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import save_file

    monkeypatch.chdir(folder)
    (folder / "native.py").write_text(NATIVE)
    with fresh():
        load_plugin(folder / "native.py")
        save_file({"X": X, "y": Y}, "native.safetensors")
        first = at_hand("native", folder)
        assert first is not None
        save_file({"X": X + 1, "y": Y}, "native.safetensors")
        assert at_hand("native", folder) not in (None, first)


MODEL = '''"""Models that are built from files."""

import threading

import torch

from dynabro_cli.plugins import model


def weights(file):
    with open(file) as opened:
        return float(opened.read())


@model("scaled")
def scaled(shape, *, file: str, thread: bool = False):
    """A layer with a scale from a file."""
    if thread:
        reader = threading.Thread(target=weights, args=(file,))
        reader.start()
        reader.join()
    layer = torch.nn.Linear(shape.channels * shape.height * shape.width, shape.classes)
    with torch.no_grad():
        layer.weight *= 1.0 if thread else weights(file)
    return torch.nn.Sequential(torch.nn.Flatten(), layer)


@model("compiled-inside")
def compiled_inside(shape):
    """A network that is compiled while it is built."""
    layer = torch.nn.Linear(shape.channels * shape.height * shape.width, shape.classes)
    torch.compile(layer)(torch.zeros(2, layer.in_features))
    return torch.nn.Sequential(torch.nn.Flatten(), layer)


@model("convolutions")
def convolutions(shape):
    """A network for which dynabro compiles kernels."""
    layers = [torch.nn.Conv2d(shape.channels, 16, 3, padding=1), torch.nn.GroupNorm(4, 16)]
    layers += [torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.GroupNorm(4, 16), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16 * 64, shape.classes))
'''


def of_model(model: str, folder: Path, compiled: str = "off") -> tuple[str | None, list[Event]]:
    """Return the digest of a model's files, and the events of its run, with one checkpoint."""
    fields = {"task": "digits", "method": "sgd", "budget": 4, "workers": 3, "byzantine": 1}
    run = resolve.resolve(RunSpec(model=model, batch_size=4, **fields), folder)
    asked = itertools.count()
    made = simulate_run(
        run, data_dir=folder, device="cpu", compile=compiled, wanted=lambda: next(asked) == 1
    )
    events = list(made)
    (started,) = [event for event in events if isinstance(event, Started)]
    digests = json.loads(str(started.record["code_digests"])).items()
    return next(
        (digest for name, digest in digests if name.startswith("data/models/")), None
    ), events


def resumed(model: str, folder: Path, events: list[Event], compiled: str = "off") -> Started:
    """Resume a run from its checkpoint, as after a signal."""
    fields = {"task": "digits", "method": "sgd", "budget": 4, "workers": 3, "byzantine": 1}
    run = resolve.resolve(RunSpec(model=model, batch_size=4, **fields), folder)
    (checkpoint,) = [event for event in events if isinstance(event, Checkpointed)]
    again = simulate_run(
        run, data_dir=folder, device="cpu", compile=compiled, resume=checkpoint.data
    )
    (started,) = [event for event in again if isinstance(event, Started)]
    return started


@pytest.mark.parametrize(
    ("place", "counts"),
    [
        ("plugins", True),
        ("here", True),
        ("cache/dynabro/data", True),
        ("elsewhere", True),
        ("cache/torch", False),
        ("cache/dynabro/native", False),
        ("tmp", False),
        ("tmp/torchinductor_me", False),
        ("inductor", False),
    ],
)
def test_the_files_of_a_model_are_those_that_its_function_opens(
    place: str, counts: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plugins", "here", "tmp", "cache/dynabro/data", place):
        (folder / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    monkeypatch.chdir(folder / "here")
    (folder / "plugins" / "models.py").write_text(MODEL)
    data_dir = folder / "cache" / "dynabro" / "data"
    with fresh():
        load_plugin(folder / "plugins" / "models.py")
        file = folder / place / "w.txt"
        text = f"scaled:file={file}"
        file.write_text("2")
        first, events = of_model(text, data_dir)
        assert (first is not None) == counts
        assert of_model(f"{text},thread=true", data_dir)[0] is None, (
            "another thread opens files of its own"
        )
        file.write_text("3")
        assert (of_model(text, data_dir)[0] != first) == counts
        file.write_text("2")
        assert of_model(text, data_dir)[0] == first
        assert at_hand(f"models/{text}", data_dir) == first
        assert resumed(text, data_dir, events).unused is None


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["compiled-inside", "convolutions"])
def test_an_empty_cache_changes_no_identity(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    # torch keeps the place of its first compilation in a process
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "tmp" / "torchinductor_me"))
    (folder / "tmp").mkdir()
    (folder / "models.py").write_text(MODEL)
    with fresh():
        load_plugin(folder / "models.py")
        digest, events = of_model(model, folder / "data", "on")
        assert digest is None
        assert resumed(model, folder / "data", events, "on").unused is None
        assert of_model(model, folder / "data", "on")[0] is None
