"""The systems on which dynabro works."""

from __future__ import annotations

import subprocess
import sys

from tests.tables import each_row


@each_row("name", ["win32", "freebsd14", "cygwin", "emscripten"])
@each_row("module", ["dynabro_cli", "dynabro_cli.cli.app", "dynabro_cli.runs.store"])
def test_another_system_is_refused_in_one_line(name: str, module: str) -> None:
    program = f"import sys; sys.platform = {name!r}; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (78, "")
    line = "dynabro: it needs Linux or macOS. Try: on Windows, WSL\n"
    assert done.stderr == line
