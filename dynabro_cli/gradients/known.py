"""The way in which the gradients of a model are computed, found by a trial, which loads torch, and remembered."""

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

from dynabro_cli.errors import SpecError
from dynabro_cli.lazy import torch
from dynabro_cli.machine import native
from dynabro_cli.tasks._api import ImageShape

if TYPE_CHECKING:
    from torch import nn

FOLDER = Path(__file__).parent


class Way(NamedTuple):
    """The way of computing a model's gradients, and its number of convolution blocks that can be compiled."""

    kind: str
    blocks: int


def known_way(factory: Callable[..., nn.Module], build: Callable[[ImageShape], nn.Module]) -> Way | None:
    """Return what ``way_of`` finds for a model, from the platform's cache or by a trial.

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
    way = way_of(build)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f"{place.name}.{os.getpid()}")
        beside.write_text(json.dumps(way), encoding="utf-8")
        beside.replace(place)
    return way


def way_of(build: Callable[[ImageShape], nn.Module]) -> Way | None:
    """Return how the gradients of a model are computed, by a trial on noise; None if no image of a known task fits.

    Args:
        build: Builds the model for images of a shape.
    """
    from dynabro_cli.gradients.conv_block import blocks_of
    from dynabro_cli.gradients.engine import SHARED, WorkerGradients

    for shape in (ImageShape(1, 28, 28, 10), ImageShape(3, 32, 32, 10), ImageShape(1, 8, 8, 10)):
        try:
            engine = WorkerGradients(build(shape), 2)
        except SpecError:
            continue
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(2, 4, shape.channels, shape.height, shape.width, generator=generator)
        engine(inputs, torch.arange(4).expand(2, 4), 2, range(4))
        served = blocks_of(engine._twin) if engine.kind == SHARED and engine._twin is not None else []
        return Way(engine.kind, sum(block.seen is not None and block.seen.served for block in served))
    return None


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
