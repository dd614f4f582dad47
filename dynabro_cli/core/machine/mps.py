"""CUDA's multi-process service (MPS): with it, kernels of several processes run on a GPU at the
same time, not in turns.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import IO, cast

from dynabro_cli.core.errors import last_line
from dynabro_cli.core.machine.devices import cards, look

FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
"""The variable by which CUDA finds the service."""
CONTROL = "nvidia-cuda-mps-control"
# where CUDA looks for a service if the environment names no folder
USUAL_FOLDER = "/tmp/nvidia-mps"
LOG_FOLDER = "CUDA_MPS_LOG_DIRECTORY"
LONGEST = 60
"""Characters of the longest folder for temporary files in which a service can have its socket."""
START_SECONDS, ASK_SECONDS, END_SECONDS = 20.0, 5.0, 5.0
ERRORS = "start.log"
KEEPER = f"""
{CONTROL} -d </dev/null >&2 && echo started || echo failed
read -r _
echo quit -t 2 | {CONTROL} >&2
rm -rf "${FOLDER}"
"""
"""The program that keeps a private service while its standard input is open.

The service is a daemon, which would outlive a command that is killed. But the pipe to this program
closes however the command ends; then the program, which has its own session, ends the service and
removes its folder.
"""


def at_hand() -> str | None:
    """Return the folder of the service that a sweep would use, without starting it; None without a
    service.
    """
    named = os.environ.get(FOLDER)
    if named is None:
        return USUAL_FOLDER if shutil.which(CONTROL) else None
    return named if _answers(named) else None


def start(stack: contextlib.ExitStack) -> str | None:
    """Return the folder of the user's service, or of a private one that ends with ``stack``; None
    without a service that serves a first client.
    """
    named = os.environ.get(FOLDER, USUAL_FOLDER)
    if _answers(named):
        return _proved(named)
    if FOLDER in os.environ or not shutil.which(CONTROL):
        return None
    # the path of a socket has at most 108 characters
    place = "/tmp" if len(tempfile.gettempdir()) > LONGEST else None
    folder = tempfile.mkdtemp(prefix="dynabro-mps-", dir=place)
    environment = os.environ | {FOLDER: folder, LOG_FOLDER: folder}
    # the service would number the GPUs anew, and so would its clients; but parts of a GPU, and
    # GPUs with names, are found only if the service has them, too
    if environment.get("CUDA_VISIBLE_DEVICES", "").replace(",", "").isdigit():
        del environment["CUDA_VISIBLE_DEVICES"]
    with Path(folder, ERRORS).open("wb") as errors:
        keeper = subprocess.Popen(
            ["sh", "-c", KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # Ctrl-C of a terminal does not reach it
        )
    stack.callback(_end, keeper)
    answer = cast(IO[bytes], keeper.stdout)
    if select.select([answer], [], [], START_SECONDS)[0] and answer.readline() == b"started\n":
        return _proved(folder)
    why = (
        last_line(Path(folder, ERRORS).read_text(errors="replace"))
        or f"it has not started after {START_SECONDS:g} s"
    )
    _warn(f"did not start ({why})")
    return None


def _proved(folder: str) -> str | None:
    """Return the folder if a process can use the GPUs by the service there. The service's server
    starts with its first client, and may fail then.
    """
    clients = look(**{FOLDER: folder})
    if cards() and not any(card.free is not None for card in clients):
        _warn(f"in {folder} serves no process")
        return None
    return folder


def _warn(why: str) -> None:
    text = f"CUDA's multi-process service {why}, so runs take turns on a GPU"
    warnings.warn(text, stacklevel=3)


def _answers(folder: str) -> bool:
    """Return True if a service of the user answers in a folder. Without the control program, as in
    containers, its socket has to be there.
    """
    if not shutil.which(CONTROL):
        return Path(folder, "control").exists()
    try:
        asked = subprocess.run(
            [CONTROL],
            input=b"get_server_list\n",
            env=os.environ | {FOLDER: folder},
            capture_output=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _end(keeper: subprocess.Popen[bytes]) -> None:
    """End a private service, and wait a little for its end, which comes in any case."""
    for pipe in (keeper.stdin, keeper.stdout):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        keeper.wait(END_SECONDS)
