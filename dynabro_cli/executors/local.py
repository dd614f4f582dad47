"""Run one spec in this process."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dynabro_cli import events
from dynabro_cli.components import plugin_errors
from dynabro_cli.errors import BusyError, CannotWriteError, DynabroError, LostDatabaseError, PluginError, RunError, StorageError
from dynabro_cli.executors._api import CHECKPOINT_SECONDS, Due, failure_of
from dynabro_cli.executors.interruptions import Interrupted, Interruptions
from dynabro_cli.executors.run_log import RunLog
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.machine.cores import spin_little
from dynabro_cli.store.recorder import Recorder

ROUND_SECONDS = 3.0
"""Seconds for a run, after a signal, to finish its round and hand over a checkpoint."""


def simulate_run(run: Run, **how: Any) -> Iterator[events.Event]:
    """Simulate as ``simulation.setup`` does; load torch only now."""
    spin_little()
    from dynabro_cli.simulation import setup

    return setup.simulate_run(run, **how)


def execute(
    run: Run,
    recorder: Recorder,
    listener: Callable[[events.Event], None],
    *,
    data_dir: Path | None,
    device: str,
    threads: int | None,
    compile: str = "auto",  # noqa: A002
    checkpoint_every: float = CHECKPOINT_SECONDS,
    log: RunLog | None = None,
    weights: events.SaveAt = "never",
) -> events.Finished | events.Diverged:
    """Simulate ``run``, from its checkpoint if there is one; pass events to the recorder, then to the listener; return the last
    one.

    Raises:
        InterruptedRunError: Ctrl-C; the run is stored as interrupted, with a checkpoint if it reached one.
        PreemptedError: SIGTERM; likewise.
        RunError: The simulation raised an exception; the run is stored as failed. PluginError: A plugin's code raised it.
        DynabroError: The run could not start, or its rows could not be written.
    """
    log = log or RunLog(None)
    with Interruptions(ROUND_SECONDS) as interruptions:
        try:
            stream = simulate_run(
                run,
                data_dir=data_dir,
                device=device,
                threads=threads,
                compile=compile,
                resume=recorder.checkpoint(run.key),
                wanted=Due(checkpoint_every, lambda: interruptions.signal is not None),
                weights=weights,
            )
            last = _record_all(stream, recorder, log, listener, interruptions)
        except (Interrupted, KeyboardInterrupt):
            if recorder.run_id is None:
                raise interruptions.error("before the first round; nothing is stored") from None
            recorder.interrupted()
            log.interrupted()
            raise interruptions.error("the run is stored as interrupted; the same command resumes it") from None
        except BusyError:  # the holder of the run or the database would also prevent storing the rest
            raise
        except (StorageError, CannotWriteError, LostDatabaseError):  # the run itself has no problem
            with contextlib.suppress(DynabroError):
                recorder.interrupted()
            raise
        except DynabroError as error:
            log.failed(str(error))
            with contextlib.suppress(DynabroError):  # the disk may be full; the first error is reported
                recorder.failed(str(error))
            raise
        except Exception as error:
            failure = failure_of(error)
            log.failed(failure.details)
            text = f"the run failed ({failure.reason})"
            kind = RunError if plugin_errors.where(error) is None else PluginError
            if recorder.run_id is None:
                raise kind(f"{text} before its first round; nothing is stored") from error
            recorder.failed(failure.details)
            raise kind(
                f"{text} and is stored as failed; dynabro query \"SELECT error FROM runs WHERE status='failed'\" shows where"
            ) from error
    try:
        listener(last)
    except Exception as error:
        raise RunError(f"the run is stored, but showing its end failed ({type(error).__name__}: {error})") from error
    return last


def _record_all(
    stream: Iterator[events.Event],
    recorder: Recorder,
    log: RunLog,
    listener: Callable[[events.Event], None],
    interruptions: Interruptions,
) -> events.Finished | events.Diverged:
    """Pass every event to recorder, log and listener; return the last one, which the listener has not received.

    Raises:
        Interrupted: A signal arrived, and then a checkpoint or the time limit.
    """
    while True:
        with interruptions.allowed():
            event = next(stream, None)
        if event is None:
            raise RunError("the simulation ended without a result")
        recorder.record(event)
        log.event(event)
        if isinstance(event, events.Finished | events.Diverged):
            return event
        if isinstance(event, events.Checkpointed) and interruptions.signal is not None:
            raise Interrupted
        listener(event)


def current_commit() -> str | None:
    """Return the commit of the git repository around the current folder; None without one."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
