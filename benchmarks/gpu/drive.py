"""Make the checks in forked processes, one after another, and write a line of JSON after each.

This process has imported torch, and never touches CUDA: a process cannot be forked after that. A
check that crashes, hangs or spoils the GPU ends only its own process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import table
from dynabro_cli.runs.executors.worker import die_with_parent

FORK = multiprocessing.get_context("fork")
PATIENCE = 5.0
"""Seconds that a process has to end itself. A check begins only if more seconds are left."""

Outcome = dict[str, Any]
"""Numbers and texts by name. ``error`` says why there are no others; ``rows`` are the rows of a
separate table.
"""


class Check(NamedTuple):
    """A thing to find out: the question that it answers, its name, its time limit in seconds, and
    how to find it out; ``needed`` says if the outcomes so far make it necessary.
    """

    question: str
    name: str
    seconds: float
    find: Callable[[], Outcome]
    needed: Callable[[Sequence[Outcome]], bool] = lambda _: True


def measure(
    out: Path, checks: Sequence[Check], minutes: float, say: Callable[[str], None] = print
) -> bool:
    """Make the checks within the time, and write ``gpu.jsonl``, ``gpu.md`` and ``log.txt``; return
    True if all have a result.

    The first check looks for the GPU. If it fails, the others are not tried.
    """
    out.mkdir(parents=True, exist_ok=True)
    end, lines = time.monotonic() + 60 * minutes - 2 * PATIENCE, list[Outcome]()
    with (out / "gpu.jsonl").open("w", buffering=1, encoding="utf-8") as file:
        for number, check in enumerate(checks):
            if not check.needed(lines):
                continue
            before, outcome = time.monotonic(), Outcome(error="no time left")
            if end - before > PATIENCE:
                outcome = forked([check.find], min(check.seconds, end - before), out / "log.txt")[0]
            head = {
                "question": check.question,
                "check": check.name,
                "s": round(time.monotonic() - before, 1),
            }
            lines.append(head | outcome)
            file.write(json.dumps(lines[-1]) + "\n")
            (out / "gpu.md").write_text(tables(lines), encoding="utf-8")
            say(json.dumps({name: value for name, value in lines[-1].items() if name != "rows"}))
            if not number and "error" in outcome:
                return False
    return not any("error" in line for line in lines)


def forked(finds: Sequence[Callable[[], Outcome]], seconds: float, log: Path) -> list[Outcome]:
    """Call functions in forked processes, all at once, for at most ``seconds``; ``log`` has their
    output.
    """
    end, outcomes = time.monotonic() + seconds, list[Outcome]()
    processes: list[tuple[BaseProcess, Connection]] = []
    try:
        for find in finds:
            receiving, sending = FORK.Pipe(duplex=False)
            processes.append((FORK.Process(target=_child, args=(find, sending, log)), receiving))
            processes[-1][0].start()
            # before the next fork, so that the end of the process is the end of the pipe
            sending.close()
        for process, receiving in processes:
            try:
                there = receiving.poll(max(0.0, end - time.monotonic()))
                outcomes.append(
                    receiving.recv() if there else {"error": f"longer than {seconds:.0f} s"}
                )
            except EOFError:
                process.join(PATIENCE)
                outcomes.append({"error": f"the process ended with code {process.exitcode}"})
    finally:
        for process, _ in processes:
            process.join(1.0)
            process.terminate()  # and not killed: a check may have started a service, which it ends
            process.join(PATIENCE)
            process.kill()
    return outcomes


def _child(find: Callable[[], Outcome], pipe: Connection, log: Path) -> None:
    """Call the function in this process, and send its result."""
    die_with_parent(os.getppid())
    # an exception, so that what a check has started is ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            outcome = find()
        except Exception as error:
            traceback.print_exc(file=file)
            outcome = {"error": f"{type(error).__name__}: {error}"[:600]}
    pipe.send(outcome)


def tables(lines: Sequence[Outcome]) -> str:
    """Return a Markdown table for each question, and one for each check that has rows."""
    parts = []
    for question in dict.fromkeys(line["question"] for line in lines):
        checks = [line for line in lines if line["question"] == question]
        columns = dict.fromkeys(
            name for line in checks for name in line if name not in ("question", "rows")
        )
        for title, rows in (
            (f"## {question}", checks),
            *((f"### {line['check']}", line.get("rows")) for line in checks),
        ):
            names = list(columns) if rows is checks else list(rows[0]) if rows else []
            parts += (
                [title, table(names, [[row.get(name) for name in names] for row in rows])]
                if rows
                else []
            )
    return "\n\n".join(parts) + "\n"
