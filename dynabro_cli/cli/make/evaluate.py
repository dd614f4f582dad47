"""``dynabro evaluate``: a saved model on a test set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from dynabro_cli.cli.options import DataDir, Device, Plugins
from dynabro_cli.core.errors import ModelFileError, NotFoundError, SpecError
from dynabro_cli.experiment.key import KEY_DIGITS
from dynabro_cli.runs.screen.output import print_json
from dynabro_cli.runs.screen.terminal import say


def evaluate(
    saved: Annotated[Path, typer.Argument(metavar="FILE", help="The saved model.")],
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Task whose test set is used. [default: the task of the run]"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Model that the weights belong to. [default: the model of the run]"
        ),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
    plugin: Plugins = None,
) -> None:
    """Print accuracy and loss of a saved model on the test set, or its gap.

    'dynabro run --save-model FILE' saves a model. With --task and --model, FILE may be any
    safetensors file with the tensors of that model.

    Example: dynabro evaluate model.safetensors
    """
    data, about = _read(saved)
    from dynabro_cli.simulation.weights import evaluate as evaluated

    try:
        result = evaluated(data, about, task=task, model=model, data_dir=data_dir, device=device)
    except ModelFileError as error:
        raise ModelFileError(f"{saved}: {error}") from error
    except SpecError as error:
        raise SpecError([f"{saved}: {line}" for line in error.problems]) from error
    if as_json:
        print_json(
            {
                "file": str(saved),
                "task": result.task,
                "model": result.model,
                "samples": result.samples,
            }
            | result.score._asdict()
            | {"run": _run_of(about)}
        )
        return
    if "run_key" in about:
        say(
            f"{saved}: run {about['run_key'][:KEY_DIGITS]} after "
            f"{about.get('round', 'unknown')} rounds"
        )
    if result.score.gap is not None:
        say(f"{result.task}: gap {result.score.gap}")
    else:
        say(
            f"{result.task}, {result.model}: test accuracy {result.score.accuracy:.4f}, loss "
            f"{result.score.loss:.6g} on "
            f"{result.samples} samples"
        )


def _read(file: Path) -> tuple[bytes, dict[str, str]]:
    """Return the content of a file and its metadata."""
    from dynabro_cli.core.machine.host_memory import free_host_memory
    from dynabro_cli.core.machine.strangers_files import open_regular
    from dynabro_cli.runs.store.care.models import metadata

    try:
        with open_regular(file) as opened:
            free = free_host_memory()
            # the bytes and their tensors
            if free is not None and 2 * os.fstat(opened.fileno()).st_size > free:
                raise MemoryError
            data = opened.read()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{file} does not exist. Try: dynabro run --save-model {file}"
        ) from error
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"{file} cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    except MemoryError as error:
        raise ModelFileError(f"{file} is larger than the memory") from error
    return data, metadata(file)


def _run_of(about: dict[str, str]) -> dict[str, Any] | None:
    """Return what the file says about its run; None if it names no run."""
    if "run_key" not in about:
        return None
    whole = {
        name: int(text) for name in ("round", "budget") if (text := about.get(name, "")).isdecimal()
    }
    return {"key": about["run_key"], **whole, "final": about.get("final") == "yes"}
