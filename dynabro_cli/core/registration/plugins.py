"""Plugins: a user's own Python files and modules, which register components when they are imported.

``--plugin``, the environment, or a sweep name them; installed packages have entry points. A process
that makes runs for another process gets the sources of files with its request, and loads the same
plugins.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import importlib.util
import linecache
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from dynabro_cli.core.errors import DynabroError, NameTakenError, PluginError, SpecError, first_line
from dynabro_cli.core.package import NAME

GROUP = "dynabro.plugins"
"""The entry points of installed packages; each names a module."""
VARIABLE = "DYNABRO_PLUGINS"
"""The environment's list of plugins, separated like the folders in PATH."""
MOVED = {f"{NAME}.deferred": f"{NAME}.core.lazy"} | {
    f"{NAME}.{name}": f"{NAME}.{folder}.{name}"
    for folder, names in {
        "answers": "analysis exports figures theory",
        "components": "aggregators api attacks forms methods metrics models partitions "
        "pre_aggregators switching tasks",
        "core": "errors events lazy limits machine streams vectors",
        "experiment": "grid",
        "runs": "executors notebook search store",
    }.items()
    for name in names.split()
}
"""Modules of version 1.1.0, and their places now."""


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin.

    Attributes:
        name: Absolute path of a file, or name of a module.
        sources: For a file: name and content of the file, then of the files beside it that it
            imports.
    """

    name: str
    sources: tuple[tuple[str, bytes], ...] = ()

    @property
    def is_file(self) -> bool:
        """True for a file, which can be sent to another process; a module must be installed
        there.
        """
        return self.name.endswith(".py")


# The state below belongs to the process, like ``sys.modules``: an import cannot be undone.
places: list[Path] = []
"""Files and folders with the code of plugins."""
_loaded: dict[str, Plugin] = {}
_installed_done = False


def loaded() -> tuple[Plugin, ...]:
    """Return the named plugins in the order in which they were loaded; installed packages do not
    count.
    """
    return tuple(_loaded.values())


def from_environment() -> list[str]:
    """Return the plugins that ``DYNABRO_PLUGINS`` names."""
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def absolute(name: str, folder: Path | None = None) -> str:
    """Return the absolute path of a plugin's file, relative to ``folder`` or the current folder; a
    module's name, of today if the module has moved.
    """
    if not (name.endswith(".py") or os.sep in name):
        package = ".".join(name.split(".")[:2])
        return MOVED.get(package, package) + name[len(package) :]
    return str((folder or Path()).joinpath(os.path.expanduser(name)).resolve())


def load(names: Iterable[str], folder: Path | None = None) -> None:
    """Import plugins, each once: files, or modules in the current folder or in installed packages.

    Args:
        names: Files (``rule.py``) and modules (``package.rules``).
        folder: The folder that files are relative to; by default the current folder.

    Raises:
        SpecError: A file or module does not exist.
        PluginError: A plugin raised an exception; the message has file and line. Or a loaded file
            has changed since.
    """
    for given in names:
        name = absolute(given, folder)
        if name in _loaded:
            sources = _loaded[name].sources
            if sources and _content(Path(name)) not in (None, sources[0][1]):
                raise PluginError(
                    f"plugin={given}: the file has changed since this process loaded it. Try: a "
                    "new process, or restart the notebook's kernel"
                )
            continue
        if name.endswith(".py"):
            _load_file(name, _read(given, name))
        elif os.sep in name:
            raise SpecError(
                f"plugin={given}: it is not a Python file. Try: a file that ends in .py, or a "
                "module's name"
            )
        else:
            _load_module(name)


def load_plugin(plugin: str | Path) -> None:
    """Import a plugin (a file or a module) once; its components can be used like dynabro's own.

    Args:
        plugin: A file (``my_rule.py``), or a module's name.

    Raises:
        SpecError: The plugin does not exist.
        PluginError: The plugin raised an exception; the message has file and line. Or the file has
            changed since this process loaded it.
    """
    load([str(plugin)])


def load_sent(plugins: Iterable[Plugin]) -> None:
    """Import another process's plugins that this process does not have; write files that differ
    here to a temporary folder.

    Raises:
        PluginError: A plugin raised an exception, a module is not installed here, or the process
            has another version of a file.
    """
    for plugin in plugins:
        loaded = _loaded.get(plugin.name)
        if loaded is not None and loaded.sources[:1] != plugin.sources[:1]:
            raise PluginError(
                f"plugin={plugin.name}: this process has loaded another version. Try: the same "
                "command again"
            )
        if loaded is not None:
            continue
        if not plugin.is_file:
            try:
                _load_module(plugin.name)
            except SpecError as error:
                raise PluginError(f"{error} on every machine that makes runs") from error
            continue
        folder = Path(plugin.name).parent
        if any(_content(folder / name) != content for name, content in plugin.sources):
            folder = Path(tempfile.mkdtemp(prefix="dynabro-plugin-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            for name, content in plugin.sources:
                (folder / name).write_bytes(content)
        _load_file(plugin.name, plugin.sources[0][1], folder)


def load_installed() -> None:
    """Import the plugins of installed packages (their entry points ``dynabro.plugins``) once.

    Raises:
        PluginError: A plugin raised an exception.
    """
    global _installed_done
    if _installed_done:
        return
    # before the imports: a plugin that looks up a component while it is imported comes here again
    _installed_done = True
    # takes as long as all earlier imports of this package by a command
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value):
        package = entry.dist.name if entry.dist is not None else entry.module
        try:
            with _aside():
                _add_place(entry.module)
                entry.load()
        except (Exception, SystemExit) as error:
            _installed_done = False
            advice = f"Try: pip uninstall {package}"
            raise PluginError(
                f"plugin of the installed package {package}: {described(error)}. {advice}"
            ) from error


def _aside() -> contextlib.AbstractContextManager[object]:
    """Send the output of plugins to stderr within the context, because stdout may be a command's
    JSON.
    """
    return contextlib.redirect_stdout(sys.stderr)  # noqa: TID251


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _read(given: str, name: str) -> bytes:
    try:
        if Path(name).is_fifo():  # reading would wait for its writer
            raise OSError(errno.EINVAL, "it is a pipe")
        return Path(name).read_bytes()
    except OSError as error:
        raise SpecError(
            f"plugin={given}: it cannot be read ({error.strerror}). Try: dynabro new "
            "aggregator NAME"
        ) from error


class _Loader(SourceFileLoader):
    """Execute the bytes that were read, even if the file changes, and write no bytecode beside it.

    Args:
        name: The module.
        path: The file with the bytes.
        content: The bytes.
        shown: The path in tracebacks.
    """

    def __init__(self, name: str, path: str, content: bytes, shown: str) -> None:
        super().__init__(name, path)
        self.content, self._shown = content, shown

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compile the bytes."""
        return compile(self.content, self._shown, "exec", dont_inherit=True)


def _load_file(name: str, content: bytes, folder: Path | None = None) -> None:
    """Import the file ``name``, or its copy in ``folder`` if that differs."""
    path = Path(name) if folder is None else folder / Path(name).name
    module_name = _module_name(path)
    if _file_of(sys.modules.get(module_name)) == path:  # already imported, for example by its test
        places.append(path)
        _loaded[name] = Plugin(name, ((path.name, content),))
        return
    loader = _Loader(module_name, str(path), content, name)
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    if spec is None:
        raise SpecError(f"plugin={name}: it cannot be imported. Try: a file that ends in .py")
    if str(path.parent) not in sys.path:
        # at the end: a file types.py beside the plugin must not replace Python's module
        sys.path.append(str(path.parent))
    places.append(Path(name))
    if path != Path(name):
        places.append(path.parent)
        # Tracebacks name the file of the other process, and show its lines from here. Entries
        # without a time are never checked against a file, which may differ or be missing.
        linecache.cache[name] = (
            len(content),
            None,
            content.decode(errors="replace").splitlines(keepends=True),
            name,
        )
    module = importlib.util.module_from_spec(spec)
    # before it is executed: dataclasses look up the module of a class there
    sys.modules[module_name] = module
    _execute(
        lambda: loader.exec_module(module),
        name,
        f"python {name}",
        lambda: sys.modules.pop(module_name, None),
    )
    _loaded[name] = Plugin(name, ((path.name, content),))


def _load_module(name: str) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        exists = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        exists = False
    except (Exception, SystemExit) as error:  # from the package around it
        raise PluginError(f"plugin={name}: {described(error)}. Try: python -m {name}") from error
    if not exists:
        raise SpecError(
            f"plugin={name}: there is no such module. Try: a file that ends in .py, or pip "
            "install of its package"
        )
    _add_place(name)
    _execute(lambda: importlib.import_module(name), name, f"python -m {name}", lambda: None)
    _loaded[name] = Plugin(name)


def _execute(
    action: Callable[[], object], name: str, command: str, undo: Callable[[], object]
) -> None:
    try:
        with _aside():
            action()
    except (Exception, SystemExit) as error:
        undo()
        if isinstance(error, SpecError):
            raise
        text = described(error) if where(error) else f"plugin={name}: {described(error)}"
        advice = f"{command}, which shows the traceback"
        if isinstance(error, NameTakenError):
            advice = "another name, or one of the two"
        elif isinstance(error, ImportError) and error.name in {*MOVED, f"{NAME}.components"}:
            advice = f"{MOVED.get(error.name, f'{NAME}.plugins')} in place of {error.name}"
        raise PluginError(f"{text}. Try: {advice}") from error


def _add_place(module: str) -> None:
    """Note the place of a module's code; for a package, all its modules count."""
    with contextlib.suppress(ImportError, AttributeError, ValueError):
        spec = importlib.util.find_spec(module.partition(".")[0])
        if spec is not None:
            places.extend(map(Path, spec.submodule_search_locations or [spec.origin or ""]))


def _module_name(path: Path) -> str:
    """Return the file's name, by which files beside it import it; another name if this name is
    taken.
    """
    stem = re.sub(r"\W", "_", path.stem)
    if stem in sys.modules:
        free = _file_of(sys.modules[stem]) == path
    else:
        installed = importlib.util.find_spec(stem)
        free = installed is None or installed.origin == str(path)
    return stem if free else f"dynabro_plugin_{stem}_{len(_loaded)}"


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def described(error: BaseException) -> str:
    """Return an exception in one line; if a plugin's code raised it, with file and line."""
    kind = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
    place = where(error)
    return kind if place is None else f"{place}: {kind}"


def where(error: BaseException) -> str | None:
    """Return ``FILE, line N`` of the plugin's code that raised an exception; None if no plugin's
    code did.

    The line is the last such line of the traceback, causes included.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_plugins(error.filename):
        return f"{error.filename}, line {error.lineno}"
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    for raised in chain:
        for frame in reversed(traceback.extract_tb(raised.__traceback__)):
            if _is_plugins(frame.filename):
                return f"{frame.filename}, line {frame.lineno}"
    return None


@contextlib.contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn an exception that went through a plugin's code, within the context, into a PluginError.

    Raises:
        PluginError: The error with file and line. Errors raised on purpose, and exceptions of other
            code, are unchanged.
    """
    try:
        with _aside():
            yield
    except DynabroError:
        raise
    except Exception as error:
        if where(error) is None:
            raise
        raise PluginError(
            f"{what}: {described(error)}. Try: its test, which shows the traceback"
        ) from error


def _is_plugins(file: str) -> bool:
    path = Path(file)
    return any(path == place or place in path.parents for place in places)
