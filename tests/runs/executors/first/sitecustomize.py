"""Preparation of a worker process of ``program.py``: Python imports this file when it starts."""

import os
import platform
import signal
import sys

if "-c" in sys.orig_argv:
    if os.environ.get("EARLY"):
        os.kill(os.getpid(), signal.SIGINT)
    platform.system = lambda: os.environ["PRETEND"]
