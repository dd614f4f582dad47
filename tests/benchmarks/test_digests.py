"""``python -m benchmarks digests`` writes only digests of code that gives the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import digests as script
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import digests
from dynabro_cli.core.registration.digests import DIGITS, ENGINE, at_hand

OLD = "1" * DIGITS
CWTM, SF = "aggregators/cwtm", "attacks/sf"
Table = dict[str, list[str]]
Write = Callable[..., Table]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a table from made-up runs of a commit, in which some parts have other numbers, fail, or
    have the syntax trees of today.
    """
    file = tmp_path / "same_code.json"
    file.write_text('{"parts": {}}')
    monkeypatch.setattr(digests, "SAME_CODE", file)
    monkeypatch.setattr(script, "_checkout", lambda commit, _: tmp_path / commit)
    specs: list[str] = []
    monkeypatch.setattr(script, "_spec", lambda name, _: specs.append(name) or {})
    monkeypatch.setattr(script, "_engine_specs", lambda: specs.append(ENGINE) or [{}])

    def write(
        other: tuple[str, ...] = (),
        failed: tuple[str, ...] = (),
        trees: tuple[str, ...] = (),
        changed: tuple[str, ...] = (),
        digest: str = OLD,
        before: Table | None = None,
        commits: tuple[str, ...] = ("commit",),
    ) -> Table:
        if before is not None:
            file.write_text(json.dumps({"parts": before}))

        def runs(checkout: Path, _: Any, __: Any) -> list[list[Any]]:
            here = checkout == script.HERE
            return [
                ["", "no"] if name in failed else [f"{here and name in other}", {name: digest}]
                for name in specs
            ]

        def of_trees(_: Path) -> dict[str, list[str]]:
            return {name: [str(at_hand(name)) if name in trees else "", digest] for name in specs}

        monkeypatch.setattr(
            script,
            "_runs",
            lambda *args: [[None, how] if how == "no" else [n, how] for n, how in runs(*args)],
        )
        monkeypatch.setattr(script, "_trees", of_trees)
        specs.clear()
        script.measure(commits, changed, None, True)
        parts: Table = json.loads(file.read_text())["parts"]
        return parts

    return write


def test_equal_numbers_make_a_row(write: Write) -> None:
    parts = write()
    assert parts[CWTM] == [at_hand(CWTM), OLD]
    assert parts[ENGINE] == [at_hand(ENGINE), OLD]
    assert len(parts) > 80


def test_other_numbers_and_runs_that_failed_make_none(write: Write) -> None:
    parts = write(other=(CWTM,), failed=(SF,))
    assert not {CWTM, SF} & parts.keys()
    assert ENGINE in parts
    assert ENGINE not in write(other=(ENGINE,))
    assert ENGINE not in write(failed=(ENGINE,))


def test_a_part_whose_code_has_not_changed_stays_and_the_engine_gets_the_blame(
    write: Write,
) -> None:
    parts = write(other=(CWTM,), failed=(SF,), trees=(CWTM, SF))
    assert parts[CWTM] == [at_hand(CWTM), OLD]
    assert parts[SF] == [at_hand(SF), OLD]
    assert ENGINE not in parts


def test_a_digest_that_was_equal_to_an_equal_one_stays(write: Write) -> None:
    older = "2" * DIGITS
    assert write(before={CWTM: [OLD, older]})[CWTM] == [at_hand(CWTM), OLD, older]
    assert write(before={CWTM: [older, "3" * DIGITS]})[CWTM] == [at_hand(CWTM), OLD]
    assert CWTM not in write(before={CWTM: [OLD, older]}, other=(CWTM,))


def test_a_part_that_has_changed_on_purpose_is_dropped_for_good(write: Write) -> None:
    assert write()[CWTM] == [at_hand(CWTM), OLD]
    parts = write(changed=(CWTM, SF, ENGINE), trees=(SF,))
    assert parts[CWTM] == [at_hand(CWTM)]
    assert parts[SF] == [at_hand(SF), OLD]  # the same code, whatever it gives
    assert parts[ENGINE] == [at_hand(ENGINE)]
    again = write()
    assert again[CWTM] == [at_hand(CWTM)]
    assert again[ENGINE] == [at_hand(ENGINE)]
    with pytest.raises(SpecError, match=r"changed=attacks/x: no such part\. Try: "):
        write(changed=("attacks/x",))


def test_what_has_changed_is_not_dropped_in_later_commits(write: Write) -> None:
    write(changed=(CWTM,))
    assert write(commits=("commit", "later"), digest="2" * DIGITS)[CWTM] == [
        at_hand(CWTM),
        "2" * DIGITS,
    ]
