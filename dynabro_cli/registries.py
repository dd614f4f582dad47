"""The registries of components, by kind: the names of ``dynabro list``."""

from typing import Any

from dynabro_cli.aggregators import _api as aggregators
from dynabro_cli.attacks import _api as attacks
from dynabro_cli.components import Registry
from dynabro_cli.methods import _api as methods
from dynabro_cli.models import _api as models
from dynabro_cli.partitions import _api as partitions
from dynabro_cli.pre_aggregators import _api as pre_aggregators
from dynabro_cli.switching import _api as switching
from dynabro_cli.tasks import _api as tasks

REGISTRIES: dict[str, Registry[Any]] = {
    "tasks": tasks.REGISTRY,
    "models": models.REGISTRY,
    "methods": methods.REGISTRY,
    "aggregators": aggregators.REGISTRY,
    "pre_aggregators": pre_aggregators.REGISTRY,
    "attacks": attacks.REGISTRY,
    "switching": switching.REGISTRY,
    "partitions": partitions.REGISTRY,
}
