"""What a worker process of ``program.py`` does before its first own line, as Python imports this file at its start."""

import os
import platform
import signal
import sys

if "-c" in sys.orig_argv:
    if os.environ.get("EARLY"):
        os.kill(os.getpid(), signal.SIGINT)
    platform.system = lambda: os.environ["PRETEND"]
