"""The registries of components, by kind: the names of ``dynabro list``."""

from typing import Any

from dynabro_cli.components.aggregators import _api as aggregators
from dynabro_cli.components.attacks import _api as attacks
from dynabro_cli.components.methods import _api as methods
from dynabro_cli.components.models import _api as models
from dynabro_cli.components.partitions import _api as partitions
from dynabro_cli.components.pre_aggregators import _api as pre_aggregators
from dynabro_cli.components.switching import _api as switching
from dynabro_cli.components.tasks import _api as tasks
from dynabro_cli.core.registration import Registry

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
