"""Find a sweep: a file, standard input, or one that comes with the program; and set its fields."""

from __future__ import annotations

import importlib.resources
import os
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynabro_cli.core.errors import NotFoundError, SpecError, did_you_mean
from dynabro_cli.core.limits import MOST_CHARACTERS, MOST_RUNS
from dynabro_cli.core.package import NAME
from dynabro_cli.core.registration import plugins
from dynabro_cli.experiment.grid.strict_yaml import as_yaml, plain_yaml
from dynabro_cli.experiment.grid.sweep_file import (
    Axis,
    Sweep,
    check_value,
    parse_seeds,
    parse_sweep,
    too_many,
)
from dynabro_cli.experiment.spec import canonical, full_name

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SUFFIXES = (".yaml", ".yml")
ONE = {"sweeps": "sweep", "searches": "search"}


def load_sweep(name: str, settings: Sequence[str] = (), *, run_plugins: bool = True) -> Sweep:
    """Read the sweep ``name``, then set fields: a file, or one that comes with the program, or
    ``-`` for standard input.

    Args:
        name: The name; without folder and suffix, the program's own sweeps come first.
        settings: ``FIELD=VALUE``, as ``--set`` takes them.
        run_plugins: As of ``with_plugins``.

    Raises:
        NotFoundError: There is no sweep of this name.
        PluginError: A plugin raised an exception.
        SpecError: With every problem of the file, then of the settings.
    """
    text, source, folder = read_file(name, "sweeps")
    return set_fields(with_plugins(parse(text, source, folder), folder, run_plugins), settings)


def parse(text: str, source: str, folder: Path, below: Sequence[str] = ()) -> Sweep:
    """Read a sweep written in YAML, with the sweep that it extends; its text is then the whole.

    A key of the extending file replaces the same key of the other one; ``base`` goes field by
    field, and ``grid`` axis by axis. A field of its ``base`` replaces an axis of the field, and its
    axes replace fields of the other ``base``.

    Args:
        text: The YAML.
        source: Its name in errors.
        folder: The folder that files are relative to.
        below: Files that extend this one.

    Raises:
        SpecError: With every problem of one of the files; or they extend each other in a circle.
        NotFoundError: A file is missing.
    """
    sweep = parse_sweep(text, source)
    if not sweep.extends:
        return sweep
    where, files = f"{source}: extends={sweep.extends}", (*below, os.path.realpath(source))
    place = sweep.extends if sweep.extends in shipped() else str(folder / sweep.extends)
    if os.path.realpath(place) in files:
        raise SpecError(f"{where}: the files extend each other in a circle. Try: another file")
    try:
        there, named, home = read_file(place, "sweeps")
    except NotFoundError as error:
        raise NotFoundError(f"{where}: {error}") from error
    other = parse(there, named, home, files)
    theirs, mine = plain_yaml(other.text), plain_yaml(text)
    if other.plugins:
        theirs["plugins"] = [plugins.absolute(name, home) for name in other.plugins]
    taken = {
        "base": {name for axis in sweep.grid for name in axis.fields},
        "grid": {full_name(name) for name in sweep.base},
    }
    document = theirs | mine
    for part, names in taken.items():
        before, after = (
            {full_name(name): value for name, value in whole.get(part, {}).items()}
            for whole in (theirs, mine)
        )
        document[part] = {k: v for k, v in before.items() if k not in names} | after
    document = {key: value for key, value in document.items() if value and key != "extends"}
    whole = parse_sweep(as_yaml(document), f"{source} with {sweep.extends}")
    return replace(whole, extends=sweep.extends)


def read_file(name: str, kind: str) -> tuple[str, str, Path]:
    """Return the text of a sweep or a search, its name in errors, and its folder.

    Args:
        name: As of ``load_sweep``.
        kind: ``sweeps`` or ``searches``.

    Raises:
        NotFoundError: There is no file of this name.
        SpecError: The file is not text.
    """
    # one character more than is legal shows that a text is too long, however long it is
    if name == "-":
        return sys.stdin.read(MOST_CHARACTERS + 1), "<stdin>", Path()
    shipped_files = shipped(kind)
    path = shipped_files[name] if name in shipped_files else Path(name)
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1), name, Path(str(path)).parent
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{name}: it is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    except (OSError, ValueError) as error:
        reason, files = (
            getattr(error, "strerror", None) or error,
            [file.name for file in Path().glob("*.y*ml")],
        )
        hint = did_you_mean(name, [*shipped_files, *files])
        advice = f"a file's name, or one of dynabro list {kind}"
        if here := [file for file in files if Path(file).stem == name]:
            hint, advice = "", here[0]
        raise NotFoundError(
            f"there is no {ONE[kind]} {name!r}{hint} ({reason}). Try: {advice}"
        ) from error


def with_plugins(sweep: Sweep, folder: Path, run_plugins: bool) -> Sweep:
    """Load the plugins of a sweep in ``folder``; return the sweep with their absolute names.

    The file may be a stranger's, and loading a plugin runs its code. So plugins that only the file
    names are printed first.

    Args:
        sweep: The sweep, as its file has it.
        folder: The folder that the files of plugins are relative to.
        run_plugins: False if the caller makes no runs: plugins that are not loaded already are
            printed, and not loaded.
    """
    names = tuple(plugins.absolute(name, folder) for name in sweep.plugins)
    present = {plugin.name for plugin in plugins.loaded()}
    fresh = [name for name in names if name not in present]
    if fresh and run_plugins:
        warnings.warn(
            f"{sweep.name} runs the code of plugins that its file names: {', '.join(fresh)}",
            stacklevel=2,
        )
    elif fresh:
        options = " ".join(f"--plugin {shlex.quote(name)}" for name in fresh)
        warnings.warn(
            f"{sweep.name}: the plugins that its file names are not loaded here, and their "
            "components cannot be checked. "
            f"Try: {options}, which runs their code",
            stacklevel=2,
        )
    if run_plugins:
        plugins.load(names)
    return replace(sweep, plugins=names)


def shipped(kind: str = "sweeps") -> dict[str, Traversable]:
    """Return the sweeps that come with the program, or the ``searches``, by name: from the
    installed package, or beside it in a working tree.
    """
    package = importlib.resources.files(NAME)
    folders = (package / kind, Path(str(package)).parent / kind)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    files = (
        {Path(item.name).stem: item for item in folder.iterdir() if item.name.endswith(SUFFIXES)}
        if folder
        else {}
    )
    return dict(sorted(files.items()))


def set_fields(sweep: Sweep, settings: Sequence[str]) -> Sweep:
    """Set fields wherever the sweep has them, in base or grid; a field set several times takes all
    the values in turn.

    Args:
        sweep: The sweep to change.
        settings: ``FIELD=VALUE``, or ``seeds=0..4``.

    Raises:
        SpecError: With every setting that is not legal, one line each.
    """
    values = read_settings(settings)
    sweep = replace(
        sweep, text="".join([sweep.text, *(f"# --set {setting}\n" for setting in settings)])
    )
    if "seeds" in values:
        texts = values.pop("seeds")
        if (total := sum(len(parse_seeds(text)) for text in texts)) > MOST_RUNS:
            raise SpecError(f"--set seeds: {too_many(f'{total:,} seeds')}")
        seeds = tuple(dict.fromkeys(seed for text in texts for seed in parse_seeds(text)))
        sweep = replace(without(sweep, "seed"), seeds=seeds)
    return with_values(sweep, values)


def with_values(
    sweep: Sweep, values: Mapping[str, Sequence[str]], *, axes_stay: bool = False
) -> Sweep:
    """Set fields: one value goes into the base, several make an axis, in the place of the axis that
    had the field alone.

    Args:
        sweep: The sweep to change.
        values: Values by field.
        axes_stay: True if a field of an axis stays an axis, also with one value.
    """
    for name, texts in values.items():
        points = tuple(canonical({name: text}) for text in texts)
        given = {field for point in points for field in point}
        varied = any(field in given for axis in sweep.grid for field in axis.fields)
        alone = (place for place, axis in enumerate(sweep.grid) if given.issuperset(axis.fields))
        # looked up before the axis is removed: the new axis takes its place, because the order of
        # the axes is the order of the runs
        place = next(alone, len(sweep.grid))
        for field in given:
            sweep = without(sweep, field)
        if len(points) > 1 or (axes_stay and varied):
            sweep = replace(
                sweep, grid=(*sweep.grid[:place], Axis(name, points), *sweep.grid[place:])
            )
        else:
            sweep = replace(sweep, base={**sweep.base, **points[0]})
    return sweep


def read_settings(settings: Sequence[str], keys: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the values of ``FIELD=VALUE`` texts by field; ``keys`` may be set, too, and ``seeds``,
    of which seed is one.

    Raises:
        SpecError: With every setting that is not legal, one line each.
    """
    values: dict[str, list[str]] = {}
    problems = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = "seeds" if name == "seed" else full_name(name)
        try:
            if not equals or not text:
                raise SpecError("it must be FIELD=VALUE")
            if text.startswith("["):
                raise SpecError(
                    f"it must be one value. For several, repeat it: --set {name}=A --set {name}=B"
                )
            if name == "seeds":
                parse_seeds(text)
            elif name not in keys:
                check_value(name, text, ("seeds", *keys))
            values.setdefault(name, []).append(text)
        except SpecError as error:
            problems += [f"--set {setting}: {line}" for line in error.problems]
    if problems:
        raise SpecError(problems)
    return values


def without(sweep: Sweep, name: str) -> Sweep:
    """Return the sweep without a field, and without axes that varied nothing else."""
    axes = [
        Axis(
            axis.label,
            tuple(
                {key: text for key, text in point.items() if key != name} for point in axis.points
            ),
        )
        for axis in sweep.grid
    ]
    base = {key: text for key, text in sweep.base.items() if key != name}
    return replace(sweep, base=base, grid=tuple(axis for axis in axes if axis.fields))
