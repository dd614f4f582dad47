"""``limits``: what writers accept, readers, ``db check`` and ``db merge`` accept, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dynabro_cli.core import events
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.limits import (
    LARGEST_INPUT,
    MOST_CHARACTERS,
    MOST_NOTE,
    MOST_SEEDS,
    MOST_TAGS,
    MOST_WORKERS,
)
from dynabro_cli.runs.store.care.check import check
from dynabro_cli.runs.store.care.merge import merge
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.read.queries import query
from dynabro_cli.runs.store.write import kappas, trials
from dynabro_cli.runs.store.write.origin import check_words, set_words
from dynabro_cli.runs.store.write.sweep_entry import SweepEntry
from tests.runs.store import sound
from tests.runs.store.made import both, finding, record, rounds

WIDE = "\U00010348"
"""A letter of four bytes, the longest."""
TAGS = [f"{number:05}{WIDE * 59}" for number in range(MOST_TAGS)]


def sweep(engine: Engine) -> None:
    text = "name: wide\n#" + WIDE * (MOST_CHARACTERS - 12)
    with SweepEntry(
        engine, name="s", runs=1, listed={}, jobs=1, executor="local", text=lambda _: text
    ):
        pass


def tags(engine: Engine) -> None:
    set_words(engine, [1], TAGS, (), WIDE * MOST_NOTE)


def workers(engine: Engine) -> None:
    every = events.Identity(0, tuple(range(1, MOST_WORKERS + 1)))
    done = rounds(0, 0)
    record(
        engine, [sound.beginning(2)[0], events.RoundsDone(done.rounds, done.totals, (every,))]
    ).interrupted()


def trial(engine: Engine) -> None:
    text = "name: s\nsearch: {attack: [sf, alie]}\nminimize: final_accuracy\ntrials: 3\n"
    with SweepEntry(
        engine, name="s", runs=1, listed={}, jobs=1, executor="local", text=lambda _: text
    ):
        pass
    with engine.begin() as connection:
        trials.begin(
            connection, "s", 0, None, {"attack": "sf"}, [f"{n:064}" for n in range(MOST_SEEDS)]
        )


def worst(engine: Engine) -> None:
    kappas.store(
        engine,
        [
            finding(
                workers=1, dimension=LARGEST_INPUT // 25, worst=[[-1.2345678901234567e-300] * 4000]
            )
        ],
        "1.0",
    )


@both
@pytest.mark.parametrize(
    ("write", "length"),
    [
        (sweep, "SELECT LENGTH(yaml) FROM sweeps"),
        (tags, "SELECT LENGTH(tags) FROM runs"),
        (workers, "SELECT LENGTH(byzantine) FROM identities"),
        (trial, "SELECT LENGTH(run_keys) FROM trials"),
        (worst, "SELECT LENGTH(worst) FROM verified_kappa"),
    ],
)
def test_what_is_written_at_a_limit_is_read(
    write: Callable[[Engine], None], length: str, engine: Engine, database: str, tmp_path: Path
) -> None:
    record(engine, sound.run(1))
    write(engine)
    ((characters,),) = query(open_read_only(database), length).rows
    assert characters > 90_000
    assert check(database).problems == []
    merged = merge(database, str(tmp_path / "other.db"))
    assert merged.unsound == {}


def test_more_is_refused_by_the_writer(engine: Engine) -> None:
    record(engine, sound.run(1))
    set_words(engine, [1], TAGS, (), None)
    refused = "tags: a run would have 10,001, and 10,000 are the most"
    with pytest.raises(SpecError, match=refused):
        check_words([*TAGS, "more"], None)
    with pytest.raises(SpecError, match=refused):
        set_words(engine, [1], ["more"], (), None)
