"""One connection for several transactions, and what it leaves beside the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from dynabro_cli.core.errors import LostRunError
from dynabro_cli.runs.store.write.recorder import Recorder
from dynabro_cli.runs.store.write.standing import state_of
from dynabro_cli.runs.store.write.transactions import KeptConnection
from tests.runs.store.made import KEY, both, change, read, whole_run

OTHER = "cd" * 32


@pytest.fixture
def opened(engine: Engine) -> list[Any]:
    """The connections that the engine hands out from now on."""
    connections: list[Any] = []
    event.listen(engine, "checkout", lambda connection, *_: connections.append(connection))
    return connections


@both
def test_recorders_share_a_connection_until_it_is_closed(
    engine: Engine, database: str, opened: list[Any]
) -> None:
    kept = KeptConnection(engine)
    recorders = [Recorder(kept), Recorder(kept)]
    for first, second in zip(whole_run(), whole_run(key=OTHER), strict=True):
        recorders[0].record(first)
        recorders[1].record(second)
    assert len(opened) == 1
    kept.close()
    kept.close()  # nothing happens
    assert state_of(kept, KEY).result is not None
    assert len(opened) == 2
    kept.close()
    assert read(database, "SELECT status FROM runs") == [("finished",)] * 2


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_closed_connection_leaves_no_log_beside_the_file(engine: Engine) -> None:
    kept = KeptConnection(engine)
    recorder = Recorder(kept)
    for happening in whole_run():
        recorder.record(happening)
    log = Path(f"{engine.url.database}-wal")
    assert log.stat().st_size > 0
    kept.close()
    assert not log.exists()


@both
def test_an_error_rolls_back_and_closes(engine: Engine, database: str, opened: list[Any]) -> None:
    kept = KeptConnection(engine)
    recorder = Recorder(kept)
    beginning, *_, ending = whole_run()
    recorder.record(beginning)
    kept.close()
    change(database, "UPDATE runs SET owner = 'another'")
    with pytest.raises(LostRunError):
        recorder.record(ending)
    assert len(opened) == 2
    assert read(database, "SELECT status, owner FROM runs") == [("running", "another")]
    assert state_of(kept, OTHER).result is None
    assert len(opened) == 3
    kept.close()
