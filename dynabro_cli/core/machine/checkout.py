"""The git checkout around the current folder: its commit, and the changes since."""

from __future__ import annotations

import os
import subprocess
import warnings

from dynabro_cli.core.limits import MOST_DIFF
from dynabro_cli.core.machine.macos import is_stub


def current_commit() -> str | None:
    """Return the commit of the git repository around the current folder; None without one."""
    return _git("rev-parse", "HEAD").decode(errors="replace").strip() or None


def current_changes() -> bytes:
    """Return the changes since the commit in the repository around the current folder; empty if
    there are too many.
    """
    if os.environ.get("DYNABRO_GIT_DIFF", "on") == "off":
        return b""
    changes = _git(
        "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty"
    )
    if len(changes) > MOST_DIFF:
        warnings.warn(
            f"the changes in the checkout are not stored: {len(changes):,} bytes, and "
            f"{MOST_DIFF:,} are the most. "
            "Try: DYNABRO_GIT_DIFF=off, or commit them",
            stacklevel=2,
        )
        return b""
    return changes


def _git(*words: str) -> bytes:
    """Return the output of a command of git; empty if it fails.

    The checkout may be a stranger's: programs that its own configuration names (a monitor, hooks,
    filters) are not run, and nothing is fetched. Programs that the user's configuration names are
    run.
    """
    off = ["core.fsmonitor=false", f"core.hooksPath={os.devnull}"]
    for line in (
        _output("config", "--local", "--includes", "--name-only", "--get-regexp", r"^filter\.")
        .decode()
        .splitlines()
    ):
        off.append(f"{line}={'false' if line.endswith('.required') else ''}")
    return _output(*(word for setting in off for word in ("-c", setting)), *words)


def _output(*words: str) -> bytes:
    """Return what git prints; empty if it fails."""
    if is_stub("git"):
        return b""
    settings = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}
    try:
        answer = subprocess.run(
            ["git", *words], capture_output=True, timeout=5, check=False, env=settings
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return answer.stdout if answer.returncode == 0 else b""
