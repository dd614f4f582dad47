"""Run one spec in this process."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from dynabro_cli import events
from dynabro_cli.errors import DynabroError, InterruptedRunError, RunError
from dynabro_cli.executors._api import failure_of
from dynabro_cli.resolve import Run
from dynabro_cli.simulation.setup import simulate_run
from dynabro_cli.store.recorder import Recorder


def execute(
    run: Run,
    recorder: Recorder,
    listener: Callable[[events.Event], None],
    *,
    data_dir: Path | None,
    device: str,
    threads: int | None,
    compile: str = "auto",  # noqa: A002
) -> events.Finished | events.Diverged:
    """Simulate ``run``; give every event to the recorder, then to the listener; return the last.

    Raises:
        InterruptedRunError: Ctrl-C; what there was of the run is stored as interrupted.
        RunError: The simulation raised an exception; what there was of the run is stored as failed.
        DynabroError: The run could not start, or its rows could not be written.
    """
    last = None
    try:
        for event in simulate_run(run, data_dir=data_dir, device=device, threads=threads, compile=compile):
            recorder.record(event)
            if isinstance(event, events.Finished | events.Diverged):
                last = event
                break
            listener(event)
    except KeyboardInterrupt:
        if recorder.run_id is None:
            raise InterruptedRunError("interrupted before the first round; nothing is stored") from None
        recorder.interrupted()
        raise InterruptedRunError("interrupted; the run is stored as interrupted; the same command starts it anew") from None
    except DynabroError as error:
        with contextlib.suppress(DynabroError):  # the disk may be full, and the first error is the one to tell
            recorder.failed(str(error))
        raise
    except Exception as error:
        failure = failure_of(error)
        text = f"the run failed ({failure.reason})"
        if recorder.run_id is None:
            raise RunError(f"{text} before its first round; nothing is stored") from error
        recorder.failed(failure.details)
        raise RunError(
            f"{text} and is stored as failed; dynabro query \"SELECT error FROM runs WHERE status='failed'\" shows where"
        ) from error
    if last is None:
        raise RunError("the simulation ended without a result")
    try:
        listener(last)
    except Exception as error:
        raise RunError(f"the run is stored, but showing its end failed ({type(error).__name__}: {error})") from error
    return last


def current_commit() -> str | None:
    """The commit of the git repository around the current folder, None where there is none."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
