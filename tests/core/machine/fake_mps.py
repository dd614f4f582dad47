"""A control program of CUDA's multi-process service that starts processes which only wait."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from dynabro_cli.core.machine import mps

CONTROL = """#!/bin/sh
folder=${CUDA_MPS_PIPE_DIRECTORY:-$FAKE_MPS/usual}
if [ "$1" = -d ]; then
    if [ -e "$FAKE_MPS/refuse" ]; then cat "$FAKE_MPS/refuse" >&2; exit 1; fi
    sleep 1000 >/dev/null 2>&1 &
    echo $! > "$folder/control"
    echo "$! ${CUDA_VISIBLE_DEVICES:-all} $folder" >> "$FAKE_MPS/notes"
    exit 0
fi
[ -e "$folder/control" ] || exit 1
while read -r word rest; do
    if [ "$word" = quit ]; then
        service=$(cat "$folder/control")
        kill "$service"
        while grep -q . "/proc/$service/cmdline" 2>/dev/null; do sleep 0.01; done
        rm "$folder/control"
    fi
done
"""


class Service:
    """The program, first on the path, and what it has done."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.usual = folder, folder / "usual"
        self.usual.mkdir(parents=True)
        program = folder / "bin" / mps.CONTROL
        program.parent.mkdir()
        program.write_text(CONTROL)
        program.chmod(0o755)
        self.environment = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "FAKE_MPS": str(folder),
        }

    def _notes(self) -> list[list[str]]:
        """Return process, GPUs and folder of each service that was started."""
        notes = self._folder / "notes"
        return (
            [line.split(" ", 2) for line in notes.read_text().splitlines()]
            if notes.exists()
            else []
        )

    def started(self) -> list[tuple[str, Path]]:
        """Return the GPUs and the folders of the services that were started."""
        return [(gpus, Path(folder)) for _, gpus, folder in self._notes()]

    def running(self) -> list[Path]:
        """Return the folders of the services that run."""
        return [Path(folder) for process, _, folder in self._notes() if _runs(process)]

    def refuse(self, why: str) -> None:
        """Let no service start."""
        (self._folder / "refuse").write_text(why)

    def start_usual(self) -> None:
        """Start the user's own service."""
        subprocess.run([mps.CONTROL, "-d"], check=True)

    def end(self) -> None:
        """End the services that run."""
        for process, *_ in self._notes():
            if _runs(process):
                os.kill(int(process), signal.SIGKILL)


def _runs(process: str) -> bool:
    """Return True if a process runs; a process that has ended, and that nobody has waited for, is a
    zombie.
    """
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
