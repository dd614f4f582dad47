"""What the database says of a sweep in progress, for any executor: its row in ``sweeps``, and that its writers live."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from sqlalchemy import Engine

from dynabro_cli.executors._api import Options, Outcome
from dynabro_cli.store.claims import Repeat
from dynabro_cli.store.ownership import heartbeats
from dynabro_cli.store.repetition import UpTo, never
from dynabro_cli.store.sweep_entry import SweepEntry, to_make


@contextlib.contextmanager
def signs_of_life(
    engine: Engine, outcomes: Sequence[Outcome], owners: Sequence[str], options: Options, executor: str, repeat: Repeat = never
) -> Iterator[None]:
    """While entered, the sweep is in progress in the database; at the end, ``outcomes`` say how it ended.

    Runs that have no name in common (``options.sweep`` is None) are no sweep, and get no row.

    Args:
        engine: A database opened for writing.
        outcomes: What becomes of each run, as ``Ledger.outcomes``, which are written to meanwhile.
        owners: Who writes the runs' rows.
        options: How they are made, with jobs decided.
        executor: What is stored as the executor's name.
        repeat: Which stored runs the sweep makes again.

    Raises:
        DynabroError: The database cannot be written when the sweep begins.
    """
    with contextlib.ExitStack() as stack:
        entry = None
        if options.sweep is not None:
            keys = [outcome.run.key for outcome in outcomes]
            entry = SweepEntry(
                engine,
                name=options.sweep,
                runs=len(keys),
                to_make=to_make(engine, keys, retry_failed=options.retry_failed, repeat=repeat),
                jobs=options.jobs or 1,
                executor=executor,
                rerun_after=repeat.last if isinstance(repeat, UpTo) else None,
            )
            stack.enter_context(entry)
        stack.enter_context(heartbeats(engine, [*owners, *([entry.owner] if entry else [])]))
        try:
            yield
        finally:
            if entry is not None:
                entry.failed = any(outcome.status == "failed" for outcome in outcomes)
                entry.complete = all(outcome.status != "interrupted" for outcome in outcomes)
