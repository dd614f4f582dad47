"""Advice for words that users of other tools type."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Sequence

from dynabro_cli.experiment.spec import fields

EXAMPLES = {
    "task": "digits",
    "budget": "5000",
    "aggregator": "cwtm",
    "method": "momentum",
    "workers": "25",
}
"""A value of each field that other tools call otherwise."""
SAID = {
    **dict.fromkeys(("--momentum", "--beta"), "--method momentum:beta=0.9"),
    "--alpha": "--data dirichlet:alpha=0.3",
    "-n": "--workers 25",
    "-f": "--byzantine 3",
    "--seeds": "--seed 0",
    "-j": "--jobs 2",
    **dict.fromkeys(("--gpu", "--cuda"), "--device cuda"),
    **dict.fromkeys(("-o", "--output"), "--out DIR"),
}
"""Options of other tools that are not the name of a field, and an option here that says the
same.
"""
REMOVE = ("delete", "remove", "rm")
"""Words for the command ``dynabro db remove``."""


def advice(
    words: Sequence[str],
    unknown: str | None = None,
    options: Collection[str] = (),
    lacking: str | None = None,
) -> str | None:
    """Return what to type instead of words that the command line refused; None if there is no
    better advice than ``--help``.

    Args:
        words: The words after ``dynabro``.
        unknown: The option that the command does not have, if that is what was refused.
        options: The options of the command.
        lacking: The option that has no value.
    """
    if lacking is not None:
        tag_first = words[0] == "tag" and len(words) > 3 and words[-1] == "--remove"
        return f"{lacking} {words[-2]}" if tag_first else None
    if unknown is not None:
        return _option(unknown, options)
    command, others = (words[0], words[1:]) if words else ("", ())
    if command == "db" and others and others[0] in REMOVE:
        command, others = "remove", others[1:]
    if command in REMOVE and "--where" not in others:
        return f"dynabro db remove --where {_runs(others)}"
    sql = list(itertools.takewhile(lambda word: not word.startswith("-"), others))
    return f'dynabro query "{" ".join(sql)}"' if command == "query" and len(sql) > 1 else None


def _option(unknown: str, options: Collection[str]) -> str | None:
    """Return the option, or the setting of a field, that says the same as an unknown option."""
    from dynabro_cli.experiment.grid.sweep_file import ELSEWHERE

    named = ELSEWHERE.get(unknown.removeprefix("--").replace("-", "_"))
    said = f"{fields()[named].option} {EXAMPLES[named]}" if named else SAID.get(unknown)
    if said is None:
        return None
    option, value = said.split(" ", 1)
    field = option.removeprefix("--").replace("-", "_")
    if unknown == "--seeds" and "--set" in options and option not in options:
        return "--set seeds=0..4"
    if option in options:
        return said
    return f"--set {field}={value}" if "--set" in options and field in fields() else None


def _runs(words: Sequence[str]) -> str:
    """Return a condition, quoted for a shell, for the runs that were named: by id or by sweep."""
    names = [word for word in words if not word.startswith("-")]
    if names and all(name.isdecimal() for name in names):
        ids = ", ".join(names)
        return shlex.quote(f"id = {ids}" if len(names) == 1 else f"id IN ({ids})")
    sweep = names[0] if names else "NAME"
    return f"\"sweep = '{sweep}'\""
