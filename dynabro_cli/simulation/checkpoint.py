"""State of a run between two rounds as bytes: everything that changes during the run, as data that
cannot execute code.

On a CPU a resumed run is bit-identical with an uninterrupted run, if torch uses the same vector
instructions. Random draws come from counters (``streams.py``), so no generators need to be stored;
the rest of the state is here.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from dynabro_cli import __version__
from dynabro_cli.core.errors import CheckpointError
from dynabro_cli.core.events import Totals
from dynabro_cli.core.registration.digests import DATA, parse
from dynabro_cli.experiment.complete import CompleteSpec
from dynabro_cli.simulation.round.parts import State

FORMAT = 1
MADE_BY = {"dynabro": "version of dynabro", "torch": "version of torch"}
"""Words for the versions with which a checkpoint was made, beside its digests."""


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes:
        state: Round, budget, identities, and the states of method, aggregator and attack.
        totals: The totals of the run's row in the database.
        x: The model, [d].
        buffers: Running statistics, [s].
        squares: AdaGrad-Norm's sum of squared norms.
        loss: Sum of the honest workers' losses since the last evaluation.
        loss_count: Number of these losses.
        noise_bound: The V in use; None if the method does not use V.
    """

    state: State
    totals: Totals
    x: Tensor
    buffers: Tensor
    squares: Tensor
    loss: Tensor
    loss_count: Tensor
    noise_bound: float | None

    def encode(self, spec: CompleteSpec, code: str | None = None) -> bytes:
        """Write the checkpoint of a run of ``spec`` that is computed by the digests ``code``, a
        value of ``code_digests``.
        """
        content = {field.name: _whole(getattr(self, field.name)) for field in fields(self)}
        state = {field.name: _whole(getattr(self.state, field.name)) for field in fields(State)}
        content |= {
            "state": state,
            "totals": asdict(self.totals),
            "made_by": _made_by(code),
            "spec": asdict(spec),
        }
        file = io.BytesIO()
        torch.save(content, file)
        return file.getvalue()

    @classmethod
    def decode(cls, data: bytes, spec: CompleteSpec, code: str | None = None) -> Checkpoint:
        """Read the bytes that ``encode`` wrote; tensors are on the CPU.

        Raises:
            CheckpointError: The data are not a checkpoint, or belong to another run, other code,
                other data, or another version of dynabro or torch, whose numbers may differ.
        """
        try:
            # warnings about data that are not a checkpoint, which are refused anyway
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content: dict[str, Any] = torch.load(
                    io.BytesIO(data), map_location="cpu", weights_only=True
                )
            made_by, of = content.pop("made_by"), content.pop("spec")
            current = _made_by(code)
            if made_by != current:
                other = [
                    _word(name)
                    for name in {**current, **made_by}
                    if made_by.get(name) != current.get(name)
                ]
                raise CheckpointError(
                    f"the checkpoint was made with another {' and '.join(dict.fromkeys(other))}"
                )
            if of != asdict(spec):
                raise CheckpointError("the checkpoint belongs to another run")
            if content["state"].keys() != {field.name for field in fields(State)}:
                raise ValueError(content["state"])
            content |= {"state": State(**content["state"]), "totals": Totals(**content["totals"])}
            checkpoint = cls(**content)
            state, totals, mask = checkpoint.state, checkpoint.totals, checkpoint.state.mask
            if (
                not _is_a(checkpoint, cls)
                or (state.round, state.spent) != (totals.rounds, totals.budget_spent)
                or (mask is not None and (mask.shape, mask.dtype) != ((spec.workers,), torch.bool))
            ):
                raise ValueError("a value is of the wrong kind")
            return checkpoint
        except CheckpointError:
            raise
        except Exception as error:  # any content is possible; the run then starts over
            raise CheckpointError(
                f"the checkpoint cannot be read ({type(error).__name__})"
            ) from error

    def check(self, start: Checkpoint) -> None:
        """Raise CheckpointError unless all tensors have the shapes and types of those that the run
        has at its start. What the first rounds add to a state is not compared.
        """
        if not _fits(self, start):
            raise CheckpointError("the checkpoint's values do not have the shapes of the run's")


def _is_a(value: Any, kind: Any) -> bool:
    """Return True if a value is of a kind, in the notation of annotations; numbers of anything are
    at least 0.
    """
    parts = get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = get_type_hints(kind).items()
        return isinstance(value, kind) and all(_is_a(getattr(value, n), k) for n, k in kinds)
    if get_origin(kind) is UnionType:
        return any(_is_a(value, part) for part in parts)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(
            _is_a(name, parts[0]) and _is_a(item, parts[1]) for name, item in value.items()
        )
    if kind is int:
        return type(value) is int and value >= 0
    return isinstance(value, (int, float) if kind is float else get_origin(kind) or kind)


def _fits(value: Any, start: Any) -> bool:
    if isinstance(start, Tensor):
        return (value.shape, value.dtype) == (start.shape, start.dtype)
    if isinstance(start, dict):
        return all(name in value and _fits(value[name], start[name]) for name in start)
    if is_dataclass(start):
        return all(_fits(getattr(value, f.name), getattr(start, f.name)) for f in fields(start))
    return True


def _whole(value: Any) -> Any:
    """Copy tensors: ``torch.save`` would also write the rest of the memory that a tensor is a part
    of.
    """
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def _made_by(code: str | None) -> dict[str, Any]:
    return {"format": FORMAT, "dynabro": __version__, "torch": str(torch.__version__)} | (
        parse(code) or {}
    )


def _word(name: str) -> str:
    return MADE_BY.get(name) or (
        "version of the data" if name.startswith(DATA) else "code of a component"
    )
