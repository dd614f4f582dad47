"""State of a sweep in progress in the database, for any executor: its row in ``sweeps``, and heartbeats of its writers."""

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
    """Within the context, the sweep is in progress in the database; at the end, ``outcomes`` decide its status.

    Runs without a common name (``options.sweep=None``) do not form a sweep and get no row.

    Args:
        engine: A database opened for writing.
        outcomes: The outcomes of the runs, as ``Ledger.outcomes``, which change meanwhile.
        owners: The writers of the runs' rows.
        options: The options, with jobs resolved.
        executor: The executor's name.
        repeat: Decides which stored runs the sweep makes again.

    Raises:
        DynabroError: The database cannot be written at the start of the sweep.
    """
    with contextlib.ExitStack() as stack:
        entry = None
        if options.entry is not None:
            keys = [outcome.run.key for outcome in outcomes]
            entry = SweepEntry(
                engine,
                name=options.entry,
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
