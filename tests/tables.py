"""One test over the rows of a table, which names the rows that fail.

A case for each row says no more, and costs its collection in every process of tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]
LONGEST = 200
"""Characters of a row and of its error in the message."""


def each_row(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Iterable[object] | Callable[[Any], object] | None = None,
) -> Callable[[Test], Test]:
    """Call a test once a row, with the arguments of ``pytest.mark.parametrize``, as one case.

    All rows are tried; the test is skipped if all rows are. The rows share the fixtures of the
    test, so they must not change them.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = [dict(zip(columns, _row(row, len(columns)), strict=True)) for row in rows]

    def over(test: Test) -> Test:
        def run(**fixtures: Any) -> None:
            failed, skipped = dict[int, BaseException](), list[BaseException]()
            for place, row in enumerate(values):
                try:
                    test(**fixtures, **row)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except (Exception, pytest.fail.Exception) as error:
                    failed[place] = error
            if failed:
                labels = _labels(values, ids)  # texts of rows, which may take long
                lines = [f"{labels[place]}: {_told(error)}" for place, error in failed.items()]
                message = "\n".join([f"{len(failed)} of {len(values)} rows fail", *lines])
                raise AssertionError(message) from next(iter(failed.values()))
            if skipped and len(skipped) == len(values):
                raise skipped[0]

        assert values, f"{test.__name__} has no rows"
        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in columns]
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(run, name, getattr(test, name))
        run.__dict__["pytestmark"] = list(getattr(test, "pytestmark", []))
        run.__dict__["__signature__"] = signature.replace(parameters=left)
        run.__dict__["__wrapped__"] = test
        return run

    return over


def _row(row: Any, width: int) -> Sequence[Any]:
    if isinstance(row, type(pytest.param())):
        raise TypeError("a row has no marks; cases of pytest.mark.parametrize have")
    return [row] if width == 1 else row


def _labels(
    rows: Sequence[dict[str, Any]], ids: Iterable[object] | Callable[[Any], object] | None
) -> list[str]:
    """Return a name for each row: its id, or its values; equal names are numbered."""
    if ids is None or callable(ids):
        show = repr if ids is None else ids
        labels = [", ".join(f"{key}={show(value)}" for key, value in row.items()) for row in rows]
    else:
        labels = [str(name) for _, name in zip(rows, ids, strict=True)]
    labels = [label[:LONGEST] for label in labels]
    return [
        label if labels.count(label) == 1 else f"{label} (row {place})"
        for place, label in enumerate(labels)
    ]


def _told(error: BaseException) -> str:
    text = " ".join([str(error), *getattr(error, "__notes__", [])])
    return f"{type(error).__name__}: {text[:LONGEST]}"
