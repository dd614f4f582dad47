"""Read the data of a task or a model, and find the digest of data that were read before without
reading them again.

A digest is remembered in the user's cache with the state of all files and folders that Python
opened while the data were read: size, times and inode. So a later command, which need not load
torch, knows by a look at these files that the data are the same.

The data of a task are its arrays, whatever is opened. The data of a model are the files that its
function opens (``_of_model``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dynabro_cli.components.models._api import REGISTRY as MODEL_REGISTRY
from dynabro_cli.components.tasks._api import (
    ARRAYS,
    REGISTRY,
    Images,
    ImageShape,
    Objective,
    Task,
    TaskSetting,
    check_memory,
    digest_of_all,
)
from dynabro_cli.core.errors import NotFoundError
from dynabro_cli.core.limits import LARGEST_TEXT
from dynabro_cli.core.machine.cache_folder import cache_folder, locked
from dynabro_cli.core.machine.strangers_files import read_regular
from dynabro_cli.core.registration import USERS, Component, plugins
from dynabro_cli.core.registration.digests import of_entry
from dynabro_cli.experiment.build import data_directory

READS = ("open", "os.scandir", "os.listdir")
"""Python's audit events of reading: a file that is added to a folder changes the state of the
folder alone.
"""
UNTRACKED = ("/proc/", "/sys/", "/dev/")
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables with the folders of torch's own caches."""
MODELS = "models/"
"""The beginning of the text of a model, among the texts of tasks."""
SETTLED_NS = 2_000_000_000
"""Age of the last change of a file after which another change cannot have the same time, whatever
the file system.
"""

State = tuple[int, int, int, int]
# files that were opened since the data began to be read; None if none are being read
_opened: dict[str, State] | None = None
_thread: int | None = None  # the only thread whose files are noted; None for all threads
_shipped = False  # by a task of dynabro, which reads whole files
_offline = False  # True if nothing may be downloaded
_hooked = False  # an audit hook cannot be removed, so a process adds one at most


def read(
    component: Component[Any], folder: Path, built: Task | None = None, *, offline: bool = False
) -> Images | Objective:
    """Load a task's data, or its objective, and remember the digest of the data.

    Images that are kept decoded are read from the cache, unless a file of the data has changed.
    While a process decodes them, other processes that need images wait.

    Args:
        component: The task.
        folder: The folder of data sets.
        built: The task, built for this folder; None to build it.
        offline: Raise NotFoundError if ``urllib`` is to download something, as for torchvision.
    """
    task: Task = built or component.build(TaskSetting(folder))
    place = _place(component, folder)
    file = _cache_file(component, folder) if task.keep else None
    with contextlib.nullcontext() if file is None else _alone(file.parent):
        if file is not None and (images := _cached_images(file, place)) is not None:
            return images
        with noting(shipped=component.entry.shipped, offline=offline) as files:
            data = task.load() if component.entry.shipped else _drawn(component, folder)
        # without files, a user's task may have read them by native code, which Python does not
        # notice
        seen = component.entry.shipped or _of_user(files)
        if isinstance(data, Images) and task.digest is None and seen and _settled(files):
            _remember(place, {"digest": data.digest, "files": files})
            if file is not None:
                _write_images(file, data, place)
    return data


def _drawn(component: Component[Any], folder: Path) -> Images | Objective:
    """Load a user's task, whose draws do not depend on the run: all seeds have the same data."""
    from dynabro_cli.gradients.generators import CPU, generator_states, seeded

    with seeded(0):
        before = generator_states(CPU)
        data: Images | Objective = component.build(TaskSetting(folder)).load()
        if isinstance(data, Images) and generator_states(CPU) != before:
            note = (
                f"task={component.text}: its data draw random numbers, and are read once: all runs "
                "have the same draws, and a random transform is not drawn again in later rounds"
            )
            data = dataclasses.replace(data, notes=(*data.notes, note))
    return data


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let other processes wait within the context; without a folder that can be written, they do
    the same work.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
        yield


def _cache_file(component: Component[Any], folder: Path) -> Path:
    """Return the cache's file for the images of a task. Other code replaces it, because it may be
    large.
    """
    key = repr((component.text, str(folder.absolute()), os.getcwd()))
    return (
        cache_folder() / "images" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
    )


def _write_images(file: Path, images: Images, place: Path) -> None:
    """Write images to a file of the cache."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    arrays = {name: array.contiguous() for name, array in vars(images).items() if name in ARRAYS}
    about = {
        field.name: getattr(images, field.name)
        for field in dataclasses.fields(images)
        if field.name not in ARRAYS
    }
    about |= {"shape": dataclasses.astuple(images.shape), "place": place.name}
    with contextlib.suppress(SafetensorError):  # such as a full disk
        _write(file, lambda path: save_file(arrays, path, {"about": json.dumps(about)}))


def _cached_images(file: Path, place: Path) -> Images | None:
    """Return the images that ``_write_images`` wrote; None if the data have changed since, or the
    file is damaged.
    """
    from safetensors import safe_open

    remembered = _recall(place)
    if remembered is None or not _same(remembered["files"]):
        return None
    try:
        with safe_open(file, "pt") as content:
            about = json.loads(content.metadata()["about"])
            arrays = {name: content.get_tensor(name) for name in ARRAYS}
        # written by other code or another Python, whose images are in the same file
        if about.pop("place") != place.name:
            return None
        about |= {name: tuple(about[name]) for name in ("mean", "std", "notes")} | {
            "shape": ImageShape(*about["shape"])
        }
        images = Images(**arrays, **about)
    except Exception:  # a damaged file can raise nearly anything
        return None
    return images if images.digest == remembered["digest"] else None


def digest_of_files(
    component: Component[Any], folder: Path, files: dict[str, State]
) -> dict[str, str]:
    """Return the digest of the files that a user's model was built from, by its text, and remember
    it; empty without files.
    """
    if f"{MODELS}{component.name}" not in USERS:
        return {}
    files = _of_model(_of_user(files), folder)
    digest = _of_files(files)
    if digest is not None:  # files that have just changed are looked at again
        _remember(
            _place(component, folder),
            {"digest": digest, "files": files if _settled(files) else dict.fromkeys(files, ())},
        )
    return {} if digest is None else {f"{MODELS}{component.text}": digest}


def _of_user(files: Mapping[str, State]) -> dict[str, State]:
    """Return the files that are neither code nor part of an installed package."""
    return {
        path: state
        for path, state in files.items()
        if not path.endswith(".py") and not path.startswith(INSTALLED)
    }


def _of_model(files: Mapping[str, State], folder: Path) -> dict[str, State]:
    """Return the files that are a model's data.

    Files in the folders for caches and temporary files come and go with the machine. They do not
    count, except below the folder of data sets, the current folder or a plugin's folder.
    """
    caches = [os.environ[name] for name in CACHES if name in os.environ]
    passing = cache_folder().parent, *map(Path, (tempfile.gettempdir(), *caches))
    places = dict.fromkeys(passing, False)
    counted = folder, Path.cwd(), *(place.parent for place in plugins.places if place.suffix)
    places |= dict.fromkeys(counted, True)

    def counts(path: str) -> bool:
        return next((places[place] for place in Path(path).parents if place in places), True)

    return {path: state for path, state in files.items() if counts(path)}


def _of_files(files: Iterable[str]) -> str | None:
    """Return the digest of the contents of files, in their order; None without files."""
    contents = [Path(path).read_bytes() for path in files if os.path.isfile(path)]
    return (
        digest_of_all(hashlib.sha256(content).hexdigest() for content in contents)
        if contents
        else None
    )


def at_hand(text: str, folder: Path | None) -> str | None:
    """Return the digest of the data that a run of a task or model would read now; None if the data
    cannot be read.

    Data are read only if they have not been read here yet, or one of their files has changed. This
    loads torch, unless the task has ``arrays``. Data sets are not downloaded.

    Args:
        text: The task, as in the column ``task``, or the model after ``models/``.
        folder: The folder of data sets; None for the usual one.
    """
    folder = data_directory(folder)
    try:
        # a model is not built for this: the files that it has read before say enough
        if text.startswith(MODELS):
            remembered = _recall(_place(MODEL_REGISTRY.parse(text.removeprefix(MODELS)), folder))
            return (
                None
                if remembered is None
                else remembered["digest"]
                if _same(remembered["files"])
                else _of_files(remembered["files"])
            )
        component = REGISTRY.parse(text)
        task: Task = component.build(TaskSetting(folder))
        if task.digest is not None or not task.trains_model:
            return task.digest
        remembered = _recall(_place(component, folder))
        if remembered is not None and _same(remembered["files"]):
            return str(remembered["digest"])
        data = read(component, folder, task._replace(load=task.arrays or task.load), offline=True)
        return data.digest if isinstance(data, Images) else None
    # a user's task raises anything if its files are missing; a run would report it
    except Exception:
        return None


def classes_at_hand(text: str, digest: str | None) -> int | None:
    """Return a task's number of classes; None if neither the task nor its data say it, as for a
    plugin that is not loaded.

    Args:
        text: The task, as in the column ``task``.
        digest: The digest of a run's data, if it is known: other data may have other classes.
    """
    folder = data_directory(None)
    try:
        component = REGISTRY.parse(text)
        task: Task = component.build(TaskSetting(folder))
        if task.shape is not None:
            return task.shape.classes
        if not task.trains_model or digest not in (None, at_hand(text, folder)):
            return None
        if task.look is not None:
            return task.look()[0].classes
        data = read(component, folder)
        return data.shape.classes if isinstance(data, Images) else None
    # a user's task raises anything if its files are missing
    except Exception:
        return None


@contextlib.contextmanager
def noting(
    thread: int | None = None, *, shipped: bool = False, offline: bool = False
) -> Iterator[dict[str, State]]:
    """Note the state of each file and folder that Python opens for reading within the context,
    except by imports; in one thread only, if it is given.

    If the files are ``shipped`` tasks', such as torchvision's, ``open`` raises NotFoundError for a
    file that does not fit into the free memory. ``offline``, it is raised for a download, too.
    """
    global _opened, _thread, _hooked, _shipped, _offline
    if not _hooked:
        sys.addaudithook(_note)
        _hooked = True
    _opened, _thread, _shipped, _offline = {}, thread, shipped, offline
    try:
        yield _opened
    finally:
        _opened = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and _offline and event == "urllib.Request":
        raise NotFoundError(f"{arguments[0]} is not downloaded")
    if _opened is None or event not in READS or not isinstance(arguments[0], str | os.PathLike):
        return
    if _thread not in (None, threading.get_ident()):
        return
    if event == "open" and arguments[2] & os.O_ACCMODE != os.O_RDONLY:
        return
    path = os.path.abspath(os.fspath(arguments[0]))
    if (
        path in _opened
        or path.startswith(UNTRACKED)
        or sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
    ):
        return
    state = _state(path)
    if state is not None:
        _opened[path] = state
        # what os.open opens has no mode: it is read within limits
        if _shipped and event == "open" and arguments[1] is not None:
            check_memory(f"{path}: its content needs", state[0])


def _state(path: str) -> State | None:
    """Return size, times of change and inode of a file or folder; None for anything else, as for a
    missing file.

    The time of change (ctime) cannot be set, unlike the time of modification, which copies of files
    often keep.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    regular = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return (
        (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) if regular else None
    )


def _settled(files: dict[str, State]) -> bool:
    """Return True if no file has changed while it was read, or so shortly before that a later
    change could have its time.
    """
    newest = max((max(state[1:3]) for state in files.values()), default=0)
    return time.time_ns() - newest > SETTLED_NS and _same(files)


def _same(files: Mapping[str, Iterable[int]]) -> bool:
    return all(_state(path) == tuple(state) for path, state in files.items())


def _place(component: Component[Any], folder: Path) -> Path:
    """Return the cache's file for a task: other code, another folder or another Python may read
    other data.
    """
    key = repr(
        (
            component.text,
            of_entry(component.entry),
            str(folder.absolute()),
            os.getcwd(),
            sys.version,
        )
    )
    return cache_folder() / "digests" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _remember(place: Path, what: dict[str, Any]) -> None:
    """Write what is known of a task's data."""
    _write(place, lambda path: path.write_text(json.dumps(what), encoding="utf-8"))


def _write(place: Path, write: Callable[[Path], object]) -> None:
    """Write a file of the cache, whole or not at all; without a cache, the data are read more
    often.
    """
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent)
        os.close(handle)
        try:
            write(Path(name))
            os.replace(name, place)
        except BaseException:
            os.unlink(name)
            raise


def _recall(place: Path) -> dict[str, Any] | None:
    """Return what ``_remember`` wrote; None if there is no such file."""
    try:
        remembered: dict[str, Any] = json.loads(read_regular(place, LARGEST_TEXT))
    except (OSError, ValueError, RecursionError):
        return None
    return remembered
