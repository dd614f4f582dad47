"""A schedule from a file."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dynabro_cli.components.switching._api import REGISTRY, Switching, SwitchingSetting
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import np, torch
from dynabro_cli.core.machine.strangers_files import read_regular
from dynabro_cli.core.registration import parameter

if TYPE_CHECKING:
    from torch import Tensor

HEADER = ["tick", "byzantine"]
HASH_DIGITS = 16
MOST_SHOWN = 5
"""Largest number of wrong lines in a message."""
MOST_BYTES = 16 << 20


class Row(NamedTuple):
    """Row of a schedule: the workers with these numbers, counted from 0, are Byzantine from
    ``tick`` on.
    """

    tick: int
    byzantine: tuple[int, ...]


@dataclass(frozen=True)
class Parameters:
    file: str = parameter(
        help="path of the CSV file, from the current folder",
        folder=lambda setting, path: Path.cwd(),
    )
    repeat: bool = parameter(
        False, help="start again after the file's last tick, instead of keeping its last set"
    )
    hash: str | None = parameter(
        None,
        auto=lambda block, _: content_hash(block.file),
        fixed=True,
        help="short SHA-256 of the file's content; auto: the file's. Other content is refused",
    )


@REGISTRY.register("trace", Parameters, reference="dynabro's own")
def trace(parameters: Parameters, setting: SwitchingSetting) -> Switching:
    """Trace: the schedule of a CSV file, with the columns tick and byzantine.

    A row lists the workers that are Byzantine from its tick on, as numbers from 1 to m with blanks
    between them. The list may be empty. The first row has tick 0, and ticks grow from row to row.
    For example, workers 1 to 3 for ten ticks, then workers 4 and 5 for five, then nobody:

        tick,byzantine
        0,1 2 3
        10,4 5
        15,

    The last row's set stays. With repeat=true the schedule goes from tick 0 to the tick of the last
    row, and then starts again: add a row 19 to the example, and it repeats every 20 ticks. Ticks
    are rounds, or gradient computations with clock=computation. Any number of workers may be
    Byzantine at once; the declared number f is the number that the rule is built for.

    The run's key also depends on the file's content: ``hash`` is filled in. Raises SpecError if the
    file does not exist, is not a regular file of at most 16 MiB, is not such a table, or does not
    have the hash.
    """
    rows = _parse(parameters.file, _content(parameters.file, parameters.hash), setting.workers)

    def mask(t: int) -> Tensor:
        if parameters.repeat:
            t %= rows[-1].tick + 1
        place = bisect_right(rows, t, key=lambda row: row.tick) - 1
        byzantine = np.zeros(setting.workers, dtype=bool)
        byzantine[list(rows[place].byzantine)] = True
        return torch.from_numpy(byzantine)

    counts = {len(row.byzantine) for row in rows}
    return Switching(mask, counts.pop() if len(counts) == 1 else None, kept=True)


def content_hash(file: str) -> str:
    """Return the hash of a file's content; raise SpecError if it cannot be read."""
    return hashlib.sha256(_read(file)).hexdigest()[:HASH_DIGITS]


def _read(file: str) -> bytes:
    try:
        return read_regular(Path(os.path.expanduser(file)), MOST_BYTES)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(
            f"switching 'trace': file={file} cannot be read ({reason}, in {Path.cwd()}). Try: "
            "trace:file=PATH"
        ) from error


def _content(file: str, expected: str | None) -> str:
    """Return the text of the file; raise SpecError if it is not text, or does not have this
    hash.
    """
    data = _read(file)
    digest = hashlib.sha256(data).hexdigest()[:HASH_DIGITS]
    if expected is not None and digest != expected:
        raise SpecError(
            f"switching 'trace': file={file} does not have the content of hash={expected}, but "
            f"of hash={digest}; leave hash= "
            "out to use the file as it is now"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"switching 'trace': file={file} is not text in UTF-8; save it as CSV"
        ) from error


@functools.lru_cache(maxsize=2)
def _parse(file: str, text: str, workers: int) -> tuple[Row, ...]:
    """Return the rows of the file; raise SpecError with the wrong lines."""
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[Row] = []
    problems: list[str] = []
    try:
        if [cell.strip() for cell in next(reader, [])] != HEADER:
            problems.append("line 1: it must be the header 'tick,byzantine'")
        for cells in reader:
            if any(cell.strip() for cell in cells):
                problem = _take(cells, rows, workers, first=not rows and not problems)
                problems += [f"line {reader.line_num}: {problem}"] if problem else []
    except csv.Error as error:
        problems.append(f"line {reader.line_num}: {error}")
    if not rows and not problems:
        problems.append("line 2: there is no row after the header; the first row must have tick 0")
    if problems:
        more = (
            [f"{len(problems) - MOST_SHOWN} more lines are wrong"]
            if len(problems) > MOST_SHOWN
            else []
        )
        raise SpecError(
            [f"switching 'trace': {file}, {line}" for line in problems[:MOST_SHOWN] + more]
        )
    return tuple(rows)


def _take(cells: list[str], rows: list[Row], workers: int, *, first: bool) -> str | None:
    """Append a line's row to ``rows``; return the problem instead if the line is not valid."""
    if len(cells) != len(HEADER):
        return (
            f"it has {len(cells)} cells, but must have 2, as in '10,4 5'; numbers of "
            "workers have blanks between them"
        )
    tick, *names = cells[0].strip(), *cells[1].split()
    if not (tick.isascii() and tick.isdigit()) or len(tick) > 18:
        return f"tick {tick!r} is not legal; it must be a whole number, 0 or larger"
    wrong = [
        name
        for name in names
        if not (name.isascii() and name.isdigit() and 1 <= int(name[:18]) <= workers)
    ]
    if wrong:
        return f"{wrong[0]!r} is not a worker; workers have the numbers 1 to {workers}"
    if len({int(name) for name in names}) < len(names):
        return "it names a worker twice"
    if first and int(tick):
        return f"the first tick is {tick}; it must be 0"
    if rows and int(tick) <= rows[-1].tick:
        return f"tick {tick} follows tick {rows[-1].tick}; ticks must grow"
    rows.append(Row(int(tick), tuple(sorted(int(name) - 1 for name in names))))
    return None
