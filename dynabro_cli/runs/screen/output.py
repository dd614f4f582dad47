"""Tables on standard output: for people, as JSON, or as CSV; errors on standard error."""

from __future__ import annotations

import csv
import json
import math
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from dynabro_cli.core.errors import SpecError
from dynabro_cli.runs.screen.terminal import as_line, complain, data, say

if TYPE_CHECKING:
    from dynabro_cli.experiment.comparison import CodeComparison
    from dynabro_cli.runs.store.care.outputs import Output
    from dynabro_cli.runs.store.read.queries import QueryResult

BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
UNLIMITED = 1 << 30
"""Width of a table that no terminal shows: one line for each row, for other programs."""


def emit(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    as_json: bool = False,
    as_csv: bool = False,
    keys: int = 1,
) -> None:
    """Print rows on standard output: a table that fits the terminal, or JSON, or CSV.

    Args:
        columns: Names of the columns.
        rows: Any number of rows; JSON and CSV are printed as rows arrive.
        as_json: Print a list with an object for each row.
        as_csv: Print a header and the rows.
        keys: Number of first columns that name a row, for ``table_lines``.

    Raises:
        SpecError: Both JSON and CSV are asked for.
    """
    if as_json and as_csv:
        raise SpecError("--json and --csv exclude each other. Try: one of them")
    if as_csv:
        write_csv(data(), columns, rows)
    elif as_json:
        _print_list(dict(zip(columns, row, strict=True)) for row in rows)
    else:
        say(*table_lines(columns, rows, terminal_width(), keys))


def terminal_width() -> int:
    """Return the width of the terminal on standard output, or ``COLUMNS``; ``UNLIMITED`` for
    another output.
    """
    return shutil.get_terminal_size((UNLIMITED, 0)).columns


def wrapped(text: str) -> list[str]:
    """Return the lines of a text that is as wide as the terminal; one line for another output."""
    return textwrap.wrap(text, terminal_width(), break_long_words=False, break_on_hyphens=False)


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], width: int = UNLIMITED, keys: int = 1
) -> list[str]:
    """Return the lines of a table: its header, a rule, and a line for each row.

    A table that is wider than ``width`` is cut between columns into tables below each other, each
    with the first ``keys`` columns, which name the rows; no value is left out or broken.
    """
    # not rich.table: it takes milliseconds for each row, and a quarter of a second to import
    cells = [[as_line(_cell(value)) for value in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    keys = min(keys, len(columns) - 1)
    blocks: list[list[int]] = []
    for place in range(keys, len(columns)):
        if blocks and sum(widths[other] + 2 for other in (*blocks[-1], place)) - 2 <= width:
            blocks[-1].append(place)
        else:
            blocks.append([*range(keys), place])
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        rule = ["-" * size for size in widths]
        for row in (cells[0], rule, *cells[1:]):
            lines.append("  ".join(row[place].ljust(widths[place]) for place in block).rstrip())
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_list(rows: Iterable[dict[str, Any]]) -> None:
    """Print rows in the format of ``print_json`` for a list."""
    file, lead = data(), "["
    for row in rows:
        text = json.dumps(finite(row), indent=2, default=str).replace("\n", "\n  ")
        file.write(f"{lead}\n  {text}")
        lead = ","
    file.write("[]\n" if lead == "[" else "\n]\n")


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON on standard output; NaN and infinite numbers, which JSON
    does not have, become null.
    """
    json.dump(finite(value), data(), indent=2, default=str)
    data().write("\n")


def finite(value: Any) -> Any:
    """Return ``value`` with None for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write a header and the rows, numbers in full precision; return the number of rows."""
    # csv quotes a \r only if it ends lines with \r\n, which are \n here on every system
    lines: Any = SimpleNamespace(write=lambda line: file.write(f"{line[:-2]}\n"))
    writer = csv.writer(lines)
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    return count


def save_csv(output: Output, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write a CSV file, or to standard output if its name is ``-``; return the number of rows.

    Raises:
        CannotWriteError: The file cannot be written.
        StorageError: The disk is full.
    """
    if str(output.target) in ("-", "/dev/stdout"):
        return write_csv(data(), columns, rows)
    with output.writing() as binary:
        file = TextIOWrapper(binary, encoding="utf-8", newline="")
        count = write_csv(file, columns, rows)
        file.flush()
        file.detach()
    return count


def save_parquet(output: Output, table: QueryResult) -> int:
    """Write a Parquet file; return the number of rows.

    Raises:
        SpecError: No package that writes such files is installed.
        CannotWriteError: The file cannot be written.
        StorageError: The disk is full.
    """
    frame = table.frame()
    with output.writing() as binary:
        try:
            frame.to_parquet(binary, index=False)
        except ImportError as error:
            raise SpecError(
                "a Parquet file needs the package pyarrow. Try: pip install pyarrow, or --csv FILE"
            ) from error
    return len(frame)


def warn(text: str) -> None:
    """Print one line on standard error about a problem that does not end the command."""
    complain(f"warning: {text}")


def tell_of_code(code: CodeComparison, advice: str = "") -> None:
    """Print one line if stored runs were made with other code or data than the current ones, and
    one if their data differ.

    Args:
        code: The comparison.
        advice: What to type if components or data have changed.
    """
    for line in code.lines(advice):
        warn(line)


def duration(seconds: float) -> str:
    """Return a time in two units at most, such as ``40 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    for unit, name, lower, lower_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            return f"{whole // unit} {name}" + (
                f" {rest} {lower_name}" if (rest := whole % unit // lower) else ""
            )
    return f"{whole} s" if whole >= 10 else f"{seconds:.1f} s"


def size(number: float) -> str:
    """Return a number of bytes with a unit, such as ``55 kB`` or ``1.2 MB``."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.{0 if number >= 10 * unit else 1}f} {name}"
    return f"{number:.0f} bytes"


def sparkline(values: Sequence[float | None], width: int = 30) -> str:
    """Return numbers as a line of small bars, the lowest to the highest of them; a gap where a
    number is not finite.

    With more than ``width`` numbers, evenly chosen ones are shown, the first and the last among
    them.
    """
    if len(values) > width:
        values = [values[round(place * (len(values) - 1) / (width - 1))] for place in range(width)]
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    step = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        " " if value is None or not math.isfinite(value) else BARS[round(step * (value - low))]
        for value in values
    )
