"""Components written ``name:key=value,key=value``: their parameters, their texts, and their
registries.
"""

from dynabro_cli.core.registration.component import Component, Entry
from dynabro_cli.core.registration.parameters import (
    PLUS,
    NoParameters,
    ParameterInfo,
    format_value,
    parameter,
    parameter_infos,
    parse_whole,
    plain,
    split_text,
)
from dynabro_cli.core.registration.registry import METRICS, USERS, Registry

__all__ = [
    "METRICS",
    "PLUS",
    "USERS",
    "Component",
    "Entry",
    "NoParameters",
    "ParameterInfo",
    "Registry",
    "format_value",
    "parameter",
    "parameter_infos",
    "parse_whole",
    "plain",
    "split_text",
]
