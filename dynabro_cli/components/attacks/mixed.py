"""Different attacks by different workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynabro_cli.components.attacks._api import (
    ON_DATA,
    ON_VECTORS,
    REGISTRY,
    Attack,
    AttackSetting,
    Defence,
    State,
    replace,
)
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.lazy import Late, torch
from dynabro_cli.core.registration import Component, parameter, split_text

if TYPE_CHECKING:
    from torch import Tensor

MOST_PARTS = 100


@dataclass(frozen=True)
class Parameters:
    parts: str = parameter(
        "sf/ipm/alie", help="attacks joined by /, their parameters by :, such as sf/ipm:epsilon=0.5"
    )

    def __post_init__(self) -> None:
        """Write the parts canonically, so that a run has one key; the factory reports problems."""
        with contextlib.suppress(SpecError):
            text = "/".join(part.joined(":", "/") for part in _parse(self.parts))
            object.__setattr__(self, "parts", text)

    @property
    def components(self) -> tuple[Component[Any], ...]:
        """The parts."""
        return tuple(_parse(self.parts))


@REGISTRY.register("mixed", Parameters, reference="attacks of this registry, side by side")
def mixed(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Mixed: Byzantine workers use different attacks, chosen by the worker's number.

    parts= names k attacks, and g~_i is what part i mod k sends for worker i. Each part sees the
    honest and the Byzantine workers as if it were the only attack. A part that acts on data does so
    whatever the entry of the other parts is. Parts are joined by /, and a part's parameters by
    colons: mixed:parts=sf/ipm:epsilon=2/gaussian:sigma=1:around=own.

    The state consists of the states of the parts, named ``0.name``, ``1.name``, ...

    Raises SpecError if there are fewer than two parts or more than 100, or if one of them cannot be
    a part.
    """
    components = _parse(parameters.parts)
    if len(components) < 2:
        raise SpecError(
            f"attack 'mixed': parts={parameters.parts} is one attack. Try: two or more, joined by /"
        )
    parts: list[Attack] = [
        _at_part(place, part.build, setting) for place, part in enumerate(components, 1)
    ]
    for place, (component, part) in enumerate(zip(components, parts, strict=True), 1):
        if part.of_gradients:
            raise SpecError(
                f"attack 'mixed', part {place}: {component.text} takes gradients, but the "
                "other parts take what "
                f"enters at attack_entry. Try: {component.name}"
            )

    def messages(vectors: Tensor, byzantine: Tensor, state: State, *seen: Defence) -> Tensor:
        sent, turn = vectors, torch.arange(setting.workers, device=vectors.device) % len(parts)
        for index, part in enumerate(parts):
            asked = seen if part.sees_defence else ()
            sent = replace(
                sent, turn == index, part.messages(vectors, byzantine, _of(index, state), *asked)
            )
        return sent

    def labels(given: Tensor, byzantine: Tensor, classes: int) -> Tensor:
        changed, turn = given, torch.arange(setting.workers, device=given.device) % len(parts)
        for index, part in enumerate(parts):
            if part.labels is not None:
                changed = replace(changed, turn == index, part.labels(given, byzantine, classes))
        return changed

    def advance(byzantine: Tensor, state: State) -> State:
        return _joined(
            [part.advance(byzantine, _of(index, state)) for index, part in enumerate(parts)]
        )

    def observe(vectors: Tensor, byzantine: Tensor, state: State) -> State:
        before = [_of(index, state) for index in range(len(parts))]
        pairs = zip(parts, before, strict=True)
        return _joined(
            [part.observe(vectors, byzantine, old) if part.observe else old for part, old in pairs]
        )

    def follow(update: Tensor, state: State) -> State:
        pairs = [(part, _of(index, state)) for index, part in enumerate(parts)]
        return _joined([part.follow(update, old) if part.follow else old for part, old in pairs])

    return Attack(
        Late(lambda: _joined([part.initial for part in parts])),
        messages,
        advance,
        reads_own=any(part.reads_own for part in parts),
        finite=all(part.finite for part in parts),
        observe=observe if any(part.observe for part in parts) else None,
        sees_defence=any(part.sees_defence for part in parts),
        labels=labels if any(part.labels for part in parts) else None,
        entries=_entries(parts),
        by_number=True,
        follow=follow if any(part.follow for part in parts) else None,
    )


def _entries(parts: list[Attack]) -> tuple[str, ...]:
    """Return the entries that all parts have; parts that act on data do so whatever the entry of
    the others is.
    """
    others = [part.entries for part in parts if part.entries != (ON_DATA,)]
    return (
        tuple(entry for entry in ON_VECTORS if all(entry in part for part in others))
        if others
        else (ON_DATA,)
    )


def _parse(text: str) -> list[Component[Any]]:
    """Read ``name:key=value:key=value/name/...``; raise SpecError with the first part that is not
    valid.
    """
    parts = split_text(text, "/")
    if len(parts) > MOST_PARTS:
        raise SpecError(
            f"attack 'mixed': parts= has {len(parts)} attacks. Try: {MOST_PARTS} or fewer, "
            "joined by /"
        )
    return [_at_part(place, _part, part) for place, part in enumerate(parts, 1)]


def _part(text: str) -> Component[Any]:
    name, _, rest = text.partition(":")
    if name == "mixed":
        raise SpecError("attack 'mixed' cannot be a part of itself. Try: its parts")
    return REGISTRY.parse(f"{name}:{','.join(split_text(rest, ':'))}" if rest else name)


def _at_part(place: int, step: Callable[[Any], Any], argument: Any) -> Any:
    """Return the result of ``step``; report its problems in one line, with the place of the
    part.
    """
    try:
        return step(argument)
    except SpecError as error:
        raise SpecError(f"attack 'mixed', part {place}: {'; '.join(error.problems)}") from None


def _of(index: int, state: State) -> State:
    """Return the state of one part."""
    prefix = f"{index}."
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _joined(states: Sequence[Mapping[str, Tensor]]) -> State:
    return {
        f"{index}.{name}": value
        for index, state in enumerate(states)
        for name, value in state.items()
    }
