"""A real browser: the Chromium of the system, driven by Playwright, which notes its problems and
its requests.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)


class Watched:
    """A page, with what went wrong in it and what it asked of the network.

    Attributes:
        page: The page of Playwright.
        problems: Errors and warnings of the console, and exceptions.
        requests: Addresses that were requested, except files and data within the page.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on(
            "console",
            lambda message: (
                message.type in ("error", "warning") and self.problems.append(message.text)
            ),
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.requests.append(url)


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium; skip the test if it or Playwright is not installed."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install 'dynabro[test]'"
    )
    if PROGRAM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield started
        finally:
            started.close()


def opened(started: Any, url: str, **context: Any) -> Watched:
    """Open a page in a new context, such as ``color_scheme="dark"``."""
    watched = Watched(started.new_context(**context).new_page())
    watched.page.goto(url)
    return watched
