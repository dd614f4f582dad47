"""Cache of how the gradients of a model are computed, as finding it out loads torch."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs

from dynabro_cli.gradients import native

if TYPE_CHECKING:
    from torch import nn

FOLDER = Path(__file__).parent


class Way(NamedTuple):
    """The way of computing a model's gradients, and its number of convolution blocks that can be compiled."""

    kind: str
    blocks: int


def known_way(factory: Callable[..., nn.Module], build: Callable[[Any], nn.Module]) -> Way | None:
    """Return what ``engine.way_of`` finds for a model, from the platform's cache or by a trial.

    An answer counts for the same source of ``dynabro_cli.gradients``, of the model's folder and of its own file, the same
    versions of torch and Python, and the same processor. Other imports of the model's file are not considered.

    Args:
        factory: The model's factory.
        build: Builds the model for images of a shape.
    """
    place = _place(factory)
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = json.loads(place.read_text(encoding="utf-8"))
        return None if known is None else Way(*known)
    from dynabro_cli.gradients.engine import way_of

    way = way_of(build)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f"{place.name}.{os.getpid()}")
        beside.write_text(json.dumps(way), encoding="utf-8")
        beside.replace(place)
    return way


def _place(factory: Callable[..., Any]) -> Path:
    """Return the file of the cache for a model, with the present sources and versions."""
    own = Path(inspect.getsourcefile(inspect.unwrap(factory)) or __file__)
    sources = sorted({*FOLDER.glob("*.py"), *FOLDER.glob("*.cpp"), *FOLDER.parent.glob("models/*.py"), own})
    digest = hashlib.sha256()
    for source in sources:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    here = [factory.__qualname__, metadata.version("torch"), sys.version, native.processor()]
    digest.update(repr(here).encode())
    return platformdirs.user_cache_path("dynabro") / "gradients" / digest.hexdigest()[:32]
