"""Times and sizes as people read them, and rows that are printed as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dynabro_cli.runs.screen.output import duration, emit, size, sparkline, table_lines
from tests.tables import each_row


@each_row(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (6.24, "6.2 s"),
        (40.4, "40 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (200_000, "2 d 7 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@each_row(
    ("number", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (55_000, "55 kB"), (1_234_567, "1.2 MB"), (25e9, "25 GB")],
)
def test_size(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize("form", ["as_json", "as_csv"])
def test_rows_are_printed_as_they_come(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else as many as there are would be held in memory."""
    seen = []

    def rows() -> Iterator[tuple[int, str]]:
        for number in range(100):
            seen.append(capsys.readouterr().out)
            yield number, "word"

    emit(("number", "text"), rows(), **{form: True})
    text = "".join(seen) + capsys.readouterr().out
    assert all(seen[2:])
    if form == "as_json":
        expected = [{"number": number, "text": "word"} for number in range(100)]
        assert text == json.dumps(expected, indent=2) + "\n"
    else:
        assert text.splitlines() == ["number,text", *(f"{number},word" for number in range(100))]


def test_a_table_that_does_not_fit_is_cut_between_columns() -> None:
    columns, rows = ("id", "name", "mean"), [(1, "a\tb", 0.123456), (20, None, 2.0)]
    assert table_lines(columns, rows) == [
        "id  name  mean",
        "--  ----  ------",
        "1   a\\tb  0.1235",
        "20  -     2",
    ]
    narrow = ["id  name", "--  ----", "1   a\\tb", "20  -", ""]
    narrow += ["id  mean", "--  ------", "1   0.1235", "20  2"]
    assert table_lines(columns, rows, 10) == table_lines(columns, rows, 1) == narrow
    assert table_lines(columns, rows, 16) == table_lines(columns, rows)
    assert table_lines(("id",), [], 1) == ["id", "--"]


@pytest.mark.parametrize("rows", [[], [({"a": [1, "x\ny"]},)], [(float("nan"),), (None,)]])
def test_a_list_of_rows_is_the_json_of_that_list(
    rows: list[tuple[object]], capsys: pytest.CaptureFixture[str]
) -> None:
    emit(("value",), rows, as_json=True)
    expected = [{"value": None if row[0] != row[0] else row[0]} for row in rows]
    assert capsys.readouterr().out == json.dumps(expected, indent=2) + "\n"


def test_a_sparkline() -> None:
    """The lowest and the highest number have the lowest and the highest bar; what is not finite is
    a gap.
    """
    assert sparkline([0.0, 0.5, 1.0]) == "\u2581\u2585\u2588"
    assert sparkline([3.0, float("nan"), None, 3.0]) == "\u2581  \u2581"
    assert sparkline([]) == ""
    long = sparkline([float(number) for number in range(100)], 10)
    assert (len(long), long[0], long[-1]) == (10, "\u2581", "\u2588")
