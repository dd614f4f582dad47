"""One test over a table fails if a row fails, and names the row."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.tables import each_row


def test_all_rows_are_tried_and_those_that_fail_are_named() -> None:
    tried = []

    @each_row("value, bound", [(1, 5), (7, 5), (2, 5), (9, 5)])
    def small(value: int, bound: int) -> None:
        tried.append(value)
        if value == 9:
            raise KeyError("nine")
        assert value < bound

    with pytest.raises(AssertionError) as error:
        small()
    assert tried == [1, 7, 2, 9]
    first, *lines = str(error.value).splitlines()
    assert first == "2 of 4 rows fail"
    assert lines[0].startswith("value=7, bound=5: AssertionError: ")
    assert lines[-1] == "value=9, bound=5: KeyError: 'nine'"
    assert isinstance(error.value.__cause__, AssertionError)


def test_an_error_that_is_missing_fails() -> None:
    @each_row("text", ["x", "1"], ids=["word", "number"])
    def refused(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(AssertionError, match="1 of 2 rows fail\nnumber: Failed: DID NOT RAISE"):
        refused()


def test_a_row_that_is_skipped_hides_no_other() -> None:
    def check(value: int) -> None:
        if value == 0:
            pytest.skip("none")
        assert value != 2

    each_row("value", [0, 1])(check)()
    with pytest.raises(AssertionError, match="1 of 2 rows fail"):
        each_row("value", [0, 2])(check)()
    with pytest.raises(pytest.skip.Exception):
        each_row("value", [0, 0])(check)()


def test_tables_in_tables_fixtures_and_marks() -> None:
    @each_row("left", "ab")
    @pytest.mark.thorough
    @each_row("right", "cd")
    def apart(left: str, folder: Any, right: str) -> None:
        assert (left, folder, right) != ("b", "here", "c")

    assert list(inspect.signature(apart).parameters) == ["folder"]
    assert [mark.name for mark in apart.__dict__["pytestmark"]] == ["thorough"]
    with pytest.raises(AssertionError, match=r"(?s)left='b': AssertionError: 1 of 2 .*right='c'"):
        apart(folder="here")


def test_equal_names_are_numbered() -> None:
    @each_row("value", [2.0, 2.0])
    def never(value: float) -> None:
        raise ValueError("no")

    with pytest.raises(AssertionError, match=r"(?s)value=2.0 \(row 0\): .*value=2.0 \(row 1\): "):
        never()


@pytest.mark.parametrize("rows", [[], [pytest.param(1, marks=pytest.mark.slow)]])
def test_a_table_that_would_leave_something_out_is_refused(rows: list[Any]) -> None:
    def check(value: int) -> None:
        raise ValueError(value)

    with pytest.raises((AssertionError, TypeError), match=r"no rows|no marks"):
        each_row("value", rows)(check)
