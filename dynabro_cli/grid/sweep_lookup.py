"""Find a sweep: a file, standard input, or one that comes with the program; and set its fields."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynabro_cli.components import plugins
from dynabro_cli.errors import NotFoundError, SpecError, did_you_mean
from dynabro_cli.experiment.spec import canonical, full_name
from dynabro_cli.grid.sweep_file import MOST_CHARACTERS, MOST_RUNS, Axis, Sweep, check_value, parse_seeds, parse_sweep, too_many

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SUFFIXES = (".yaml", ".yml")


def load_sweep(name: str, settings: Sequence[str] = ()) -> Sweep:
    """Read the sweep ``name``, then set fields: a file, or one that comes with the program, or ``-`` for standard input.

    Args:
        name: The name; without folder and suffix, the program's own sweeps come first.
        settings: ``FIELD=VALUE``, as ``--set`` takes them.

    Its plugins are loaded.

    Raises:
        NotFoundError: There is no sweep of this name.
        PluginError: A plugin raised an exception.
        SpecError: With every problem of the file, then of the settings.
    """
    if name == "-":
        return _ready(parse_sweep(sys.stdin.read(MOST_CHARACTERS + 1), "<stdin>"), Path(), settings)
    own = shipped()
    path = own[name] if name in own else Path(name)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise SpecError(f"{name}: it is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (OSError, ValueError) as error:
        reason, files = getattr(error, "strerror", None) or error, [file.name for file in Path().glob("*.y*ml")]
        hint = did_you_mean(name, [*own, *files])
        raise NotFoundError(
            f"there is no sweep {name!r}{hint} ({reason}). Try: a file's name, or one of dynabro list sweeps"
        ) from error
    return _ready(parse_sweep(text, name), Path(str(path)).parent, settings)


def _ready(sweep: Sweep, folder: Path, settings: Sequence[str]) -> Sweep:
    """Load the plugins of a sweep in ``folder``, and set fields."""
    names = tuple(plugins.absolute(name, folder) for name in sweep.plugins)
    plugins.load(names)
    return set_fields(replace(sweep, plugins=names), settings)


def shipped(kind: str = "sweeps") -> dict[str, Traversable]:
    """Return the sweeps that come with the program, or the ``searches``, by name: from the installed package, or beside it in a
    working tree.
    """
    package = importlib.resources.files("dynabro_cli")
    folders = (package / kind, Path(str(package)).parent / kind)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    found = {Path(item.name).stem: item for item in folder.iterdir() if item.name.endswith(SUFFIXES)} if folder else {}
    return dict(sorted(found.items()))


def set_fields(sweep: Sweep, settings: Sequence[str]) -> Sweep:
    """Set fields wherever the sweep has them, in base or grid; a field set several times takes all the values in turn.

    Args:
        sweep: The sweep to change.
        settings: ``FIELD=VALUE``, or ``seeds=0..4``.

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
                raise SpecError(f"it must be one value. For several, repeat it: --set {name}=A --set {name}=B")
            if name == "seeds":
                parse_seeds(text)
            else:
                check_value(name, text, ("seeds",))
            values.setdefault(name, []).append(text)
        except SpecError as error:
            problems += [f"--set {setting}: {line}" for line in error.problems]
    if problems:
        raise SpecError(problems)
    sweep = replace(sweep, text="".join([sweep.text, *(f"# --set {setting}\n" for setting in settings)]))
    if "seeds" in values:
        texts = values.pop("seeds")
        if (total := sum(len(parse_seeds(text)) for text in texts)) > MOST_RUNS:
            raise SpecError(f"--set seeds: {too_many(f'{total:,} seeds')}")
        seeds = tuple(dict.fromkeys(seed for text in texts for seed in parse_seeds(text)))
        sweep = replace(without(sweep, "seed"), seeds=seeds)
    for name, texts in values.items():
        points = tuple(canonical({name: text}) for text in texts)
        for own in dict.fromkeys(own for point in points for own in point):
            sweep = without(sweep, own)
        if len(points) == 1:
            sweep = replace(sweep, base={**sweep.base, **points[0]})
        else:
            sweep = replace(sweep, grid=(*sweep.grid, Axis(name, points)))
    return sweep


def without(sweep: Sweep, name: str) -> Sweep:
    """Return the sweep without a field, and without axes that varied nothing else."""
    axes = [
        Axis(axis.label, tuple({key: text for key, text in point.items() if key != name} for point in axis.points))
        for axis in sweep.grid
    ]
    base = {key: text for key, text in sweep.base.items() if key != name}
    return replace(sweep, base=base, grid=tuple(axis for axis in axes if axis.fields))
