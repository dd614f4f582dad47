"""The page of a report: one HTML file with its data, its style, its program and Vega-Lite in it."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
from importlib import resources
from typing import Any

from dynabro_cli.errors import SpecError

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters that JSON may have in texts, and that could end or open something in HTML."""


def check_installed() -> None:
    """Raise SpecError if a library of reports is not installed."""
    for name in ("altair", "jinja2", "vl_convert"):
        if importlib.util.find_spec(name) is None:
            raise SpecError(
                f"a report needs {name}, which is not installed. Try: pip install 'dynabro[web]'"
            )


def page(title: str, about: dict[str, Any], content: dict[str, Any]) -> str:
    """Return the HTML of a report.

    A browser runs only the two programs whose digests the page's policy has, and connects to
    nothing: text of a database that became HTML by mistake would be harmless.

    Args:
        title: Its title.
        about: ``database``, ``where``, ``made``, ``version``: texts about the origin of the runs.
        content: Return value of ``gather.content``.
    """
    import jinja2

    from dynabro_cli.figures.report.charts import charts

    library, folder = _library(), resources.files("dynabro_cli.figures.report")
    parts = {name: folder.joinpath(f"page.{name}").read_text("utf-8") for name in ("js", "css")}
    template = folder.joinpath("page.html").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    trusted = {"library": library, "program": parts["js"], "style": parts["css"]}
    return environment.from_string(template).render(
        title=title,
        about=about,
        content=content,
        policy=" ".join(f"'sha256-{_digest(trusted[name])}'" for name in ("library", "program")),
        data=_safe(in_script({"content": content, "charts": charts()})),
        **{name: _safe(text) for name, text in trusted.items()},
    )


def in_script(value: Any) -> str:
    """Return a value as JSON in which no text can end the script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


@functools.cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one program."""
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle  # its declaration lacks the defaults
    return str(bundle()).replace("</script", "<\\/script")


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
