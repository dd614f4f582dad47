"""A model as a safetensors file: tensors by name, and text about the run; readers execute nothing
in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import safetensors
import torch
from safetensors import torch as tensor_files
from torch import Tensor

from dynabro_cli import __version__
from dynabro_cli.components.tasks._api import Images
from dynabro_cli.core.errors import ModelFileError, SpecError
from dynabro_cli.core.events import Evaluated, Weights
from dynabro_cli.core.machine.devices import pick_device
from dynabro_cli.core.registration import plugins
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.gradients.generators import seeded
from dynabro_cli.gradients.state import torch_defaults
from dynabro_cli.simulation import precision
from dynabro_cli.simulation.need import build_network
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.interface import Score


class Evaluation(NamedTuple):
    """A saved model on the test set of a task; ``samples`` is the size of the test set, None for an
    objective.
    """

    task: str
    model: str | None
    score: Score
    samples: int | None


def weights_of(
    run: Run, weights: dict[str, Tensor], evaluated: Evaluated, *, final: bool
) -> Weights:
    """Return the event that carries the model of ``run`` at an evaluation."""
    scores = {
        "accuracy": evaluated.test_accuracy,
        "loss": evaluated.test_loss,
        "gap": evaluated.gap,
    }
    about = {
        "format": "pt",
        "dynabro": __version__,
        "run_key": run.key,
        "spec": canonical_json(run.fields),
        "round": str(evaluated.round),
        "budget": str(evaluated.budget),
        "final": "yes" if final else "no",
        **{name: repr(value) for name, value in scores.items() if value is not None},
    }
    named = [Path(plugin.name).name for plugin in plugins.loaded()]
    if named:
        about["plugins"] = json.dumps(named)
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }
    return Weights(run.key, evaluated.round, final, tensor_files.save(copies, about))


@torch_defaults(torch.float32, torch.device("cpu"))
def evaluate(
    data: bytes,
    about: dict[str, str],
    *,
    task: str | None = None,
    model: str | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
) -> Evaluation:
    """Evaluate the model of a safetensors file.

    Args:
        data: The file.
        about: Its metadata.
        task: The task; None for the task of the run that the file names.
        model: The model; None for the model of that run.
        data_dir: The folder of data sets; None for the usual folder.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ModelFileError: The data are not a safetensors file, or the tensors do not match the model.
        SpecError: Task or model is not legal, or neither the file nor an argument names it.
        NotFoundError: The data of the task are missing.
    """
    try:
        tensors = tensor_files.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"not a safetensors file ({_line(error)})") from error
    spec = _spec(about)
    task = task or spec.get("task")
    if task is None:
        raise SpecError("task: the file does not name a task. Try: --task NAME --model NAME")
    named = {"task": task, "model": model or spec.get("model")}
    named |= {name: spec.get(name) for name in ("precision", "seed")}
    run = resolve(
        RunSpec.from_text({name: text for name, text in named.items() if text is not None}),
        data_directory(data_dir),
    )
    where = pick_device(device)
    supported = run.spec.precision != "tf32" or where.type == "cuda"
    dtype = precision.apply(run.spec.precision if supported else "fp32", where)
    loaded = run.parts.task.load()
    with torch.no_grad():
        if not isinstance(loaded, Images):
            x = _fitting({"x": loaded.start}, tensors, run)["x"].to(loaded.start.dtype)
            return Evaluation(run.spec.task, None, Score(None, None, loaded.gap(x).item()), None)
        if run.model is None:
            raise SpecError(f"task {run.spec.task!r} needs a model. Try: --model NAME")
        # what a model draws and does not save, and what it draws in an evaluation, are the run's
        streams, round_ = Streams(run.spec.seed), about.get("round", "")
        network = build_network(run.model, loaded.shape, streams).to(where)
        size = min(run.spec.batch_size, len(loaded.train_labels))
        problem = ImageProblem(loaded, network, 1, size, streams, where, dtype)
        network.load_state_dict(_fitting(problem.weights(), tensors, run))
        number = int(round_) if round_.isdecimal() else 0
        with seeded(streams.integer("evaluation", number), where):
            score = problem.evaluate()
        return Evaluation(run.spec.task, run.spec.model, score, len(loaded.test_labels))


def _spec(about: dict[str, str]) -> dict[str, str]:
    """Return the fields of the run that the file names; empty if it names none."""
    try:
        spec = json.loads(about.get("spec", "{}"))
    except (ValueError, RecursionError):
        return {}
    return (
        {name: str(value) for name, value in spec.items() if isinstance(value, str | int)}
        if isinstance(spec, dict)
        else {}
    )


def _fitting(expected: dict[str, Tensor], stored: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
    """Return ``stored`` if its names, shapes and kinds of numbers match ``expected``;
    floating-point numbers may differ in size.

    Raises:
        ModelFileError: A name, a shape or a kind of numbers differs.
    """
    wrong = [f"{name} is missing" for name in expected if name not in stored]
    wrong += [f"{name} is not in the model" for name in stored if name not in expected]
    wrong += [
        f"{name} has shape {list(stored[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in stored and stored[name].shape != tensor.shape
    ]
    wrong += [
        f"{name} has numbers of type {_kind(stored[name])}, not {_kind(tensor)}"
        for name, tensor in expected.items()
        if name in stored
        and stored[name].dtype != tensor.dtype
        and not (stored[name].is_floating_point() and tensor.is_floating_point())
    ]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        expected_by = (
            f"model {run.spec.model!r} of task {run.spec.task!r}"
            if run.spec.model
            else f"task {run.spec.task!r}"
        )
        raise ModelFileError(
            f"the tensors do not fit {expected_by}: {wrong[0]}{more}. Try: --model NAME or "
            "--task NAME"
        )
    return stored


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
