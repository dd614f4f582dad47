"""Methods as runs have them: made by their factories, then configured with values of other
parts.
"""

from __future__ import annotations

from dynabro_cli.components.methods._api import Measured, Method, MethodSetting
from dynabro_cli.components.registries import REGISTRIES


def made(text: str, setting: MethodSetting, known: Measured) -> Method:
    """The method that ``text`` names."""
    method: Method = REGISTRIES["methods"].parse(text).build(setting)
    return method if method.with_measured is None else method.with_measured(known)
