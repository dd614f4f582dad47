"""The process of a step: make its checks one after another, and write a line before and after each."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

from benchmarks.gpu.steps import Found, How, Step
from dynabro_cli.machine.devices import spoilt

STICKY = ("CUDA error", "device-side assert", "illegal memory access", "cudaError")
"""Texts of errors after which a process can no longer use its GPU."""
PATIENCE = 3.0
"""Seconds between SIGTERM and SIGKILL."""


def main(name: str, place: str, how: str, known: str) -> None:
    """Make the checks of a step that are not ``known``."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # processes that a check has started are ended
    threading.Thread(target=follow, args=(os.dup(0),), daemon=True).start()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the output of libraries goes to the log

    def tell(**message: object) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    done, where = set(json.loads(known)), How(**json.loads(how))
    if where.tiny:  # a trial computes almost nothing
        import torch

        torch.set_num_threads(1)
    if where.gpu:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(torch.device(where.device).index or 0)
    for check in Step(name, 0, place, 0).checks(where):
        if check.name in done:
            continue
        tell(kind="begin", check=check.name, seconds=check.seconds)
        outcome = outcome_of(check.find)
        tell(kind="done", outcome=outcome)
        sticky = any(text in str(outcome.get("error")) for text in STICKY) and "out of memory" not in str(outcome["error"])
        if sticky or spoilt():
            tell(kind="lost")  # this process can no longer use its GPU, and may take long to end
            return
    tell(kind="end")


def follow(parent: int) -> None:
    """End this process and its children if the command that started them is killed, which closes the pipe."""
    os.read(parent, 1)
    os.killpg(os.getpgrp(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def outcome_of(find: Any) -> dict[str, Any]:
    """Return the result of a check, with its state: ``done``, ``wrong``, ``left out`` or ``error``."""
    try:
        found: Found = find()
    except Exception as error:
        traceback.print_exc()
        return {"state": "error", "error": f"{type(error).__name__}: {error}"[:600]}
    if "left out" in found:
        return {"state": "left out", "error": found["left out"]}
    return {"state": "done" if found.get("ok", True) else "wrong", **found}


if __name__ == "__main__":
    main(*sys.argv[1:])
