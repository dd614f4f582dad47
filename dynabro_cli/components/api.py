"""Components in Python, for notebooks and training loops: one object for each, with its state
inside.

Messages have any of the forms of ``forms``, and results have the same form.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import SERVER, Aggregator, AggregatorSetting
from dynabro_cli.components.attacks._api import Attack, AttackSetting, Defence, honest_mean
from dynabro_cli.components.forms import read
from dynabro_cli.components.pre_aggregators._api import PreAggregator
from dynabro_cli.components.pre_aggregators._chain import build_chain, split_chain
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.switching._api import Switching, SwitchingSetting
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.registration import plain
from dynabro_cli.core.vectors.finite import sound

COMPUTED_IN = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""Legal types of vectors, and the type in which each is computed."""
Built = TypeVar("Built")


class Bound:
    """A component in its setting. A pickled or copied object keeps its state, and is built again
    from its text.
    """

    _made_by = ""
    _kept = "_state"
    """The attribute that a call changes."""

    def __init__(self, text: str, setting: Any) -> None:
        if setting.workers < 1:
            raise SpecError(
                f"workers={setting.workers} is not legal. Try: the number of rows of the messages"
            )
        self._text, self._setting, self._workers = text, setting, setting.workers
        self._for_fewer: dict[int, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._text, self._setting), {self._kept: getattr(self, self._kept)}

    def __repr__(self) -> str:
        usual = {field.name: field.default for field in dataclasses.fields(self._setting)}
        given = [
            f"{name}={value!r}"
            for name, value in vars(self._setting).items()
            if value != usual[name]
        ]
        return f"{self._made_by}({', '.join([repr(self._text), *given])})"

    def _for(self, rows: int, whole: Built, build: Callable[[Any], Built]) -> Built:
        """Return the component for the messages of ``rows`` workers; the declared number f does not
        change.

        Any f of the workers that answered may be Byzantine. So rules refuse too few rows.
        """
        if rows == self._workers:
            return whole
        if getattr(whole, "by_number", False):
            raise ValueError(
                f"{self!r} needs {self._workers} rows, because it knows workers by their "
                f"numbers, not {rows} rows"
            )
        if rows not in self._for_fewer:
            self._for_fewer[rows] = build(dataclasses.replace(self._setting, workers=rows))
        built: Built = self._for_fewer[rows]
        return built


def build_rule(text: str, setting: AggregatorSetting) -> Aggregator:
    """Return the rule that ``text`` names, with the pre-aggregators before it, as pure
    functions.
    """
    *chain, rule = split_chain(text) or [text]
    registry = REGISTRIES["pre_aggregators"]
    return build_chain(
        REGISTRIES["aggregators"].parse(rule), [registry.parse(part) for part in chain], setting
    )


class BoundAggregator(Bound):
    """An aggregation rule in its setting; a stateful rule keeps its state here."""

    _made_by = "make_aggregator"

    def __init__(self, text: str, setting: AggregatorSetting) -> None:
        super().__init__(text, setting)
        self._rule = self._build(setting)
        self._state: dict[str, Tensor] = {}

    def _build(self, setting: AggregatorSetting) -> Aggregator:
        return build_rule(self._text, setting)

    @property
    def kappa(self) -> float | None:
        """The proved constant of (delta, kappa)-robustness at delta = f/m; None if no constant is
        proved.
        """
        return self._rule.kappa

    def __call__(self, messages: Any, computations: int | Tensor = 1, server: Any = None) -> Any:
        """Aggregate messages, each the mean of ``computations`` mini-batches, to one message of
        their form and types.

        Messages are a matrix [m, d] of torch or NumPy; a list with each worker's message; or a dict
        of stacked parameters [m, ...] by name. A worker's message in a list is a tensor or an array
        of any shape, a dict of parameters by name, or a list of them. Fewer than m rows are the
        messages of the workers that answered. The declared f stays, because every Byzantine worker
        may have answered.

        ``server`` is the server's gradient in the form of a message, on the device of the messages,
        for a rule that needs it.

        The messages are floating-point numbers on any device, contiguous or not. Half-precision
        types are computed in single precision, and parameters of several types in the widest one.
        Gradients flow through all rules.

        Raises:
            TypeError: The messages are neither tensors nor arrays.
            ValueError: The messages have another shape or type, no columns, or too few rows for f;
                or their shape, type or device differs from the vectors that the rule remembers. Or
                the rule needs the server's gradient, and it is not given.
        """
        result, self._state = self._aggregated(messages, computations, server)
        return result

    def preview(self, messages: Any, computations: int | Tensor = 1, server: Any = None) -> Any:
        """Return the result of a call without changing a stateful rule."""
        return self._aggregated(messages, computations, server)[0]

    def _aggregated(
        self, messages: Any, computations: int | Tensor, server: Any
    ) -> tuple[Any, dict[str, Tensor]]:
        matrix, restore = read("messages", messages)
        _check_vectors("messages", matrix, self._workers)
        rule = self._for(len(matrix), self._rule, self._build)
        given: dict[str, Tensor] = {}
        if rule.needs_server:
            given[SERVER] = _checked_server(server, matrix)
        for value in self._state.values():
            _check_remembered(matrix, value)
        result, state = rule.aggregate(_computed_with(matrix), self._state | given, computations)
        return restore(result), {name: value.detach() for name, value in state.items()}


class BoundPreAggregator(Bound):
    """A pre-aggregator, or a chain of them, in its setting; the call's number, for random draws, is
    kept here.

    Attributes:
        workers: The number m' of messages that come out of m.
    """

    _made_by = "make_pre_aggregator"
    _kept = "_calls"

    def __init__(self, text: str, setting: AggregatorSetting) -> None:
        super().__init__(text, setting)
        self._stages = self._build(setting)
        self.workers: int = self._stages[-1].workers if self._stages else setting.workers
        self._calls = 0

    def _build(self, setting: AggregatorSetting) -> list[PreAggregator]:
        stages: list[PreAggregator] = []
        for part in split_chain(self._text):
            stages.append(REGISTRIES["pre_aggregators"].parse(part).build(setting))
            setting = dataclasses.replace(setting, workers=stages[-1].workers)
        return stages

    def __call__(self, messages: Any) -> Any:
        """Map messages [m, d] to messages [m', d], in any form that rules take; a message with a
        NaN or an Inf counts as 0.

        Raises:
            TypeError: The messages are neither tensors nor arrays.
            ValueError: The messages have another shape or type, no columns, or too few rows for f.
        """
        matrix, restore = read("messages", messages)
        _check_vectors("messages", matrix, self._workers)
        stages = self._for(len(matrix), self._stages, self._build)
        mixed = sound(_computed_with(matrix))[0]
        for place, stage in enumerate(stages):
            number = torch.tensor(self._calls * len(stages) + place, device=mixed.device)
            mixed = stage.mix(mixed, number) if stage.numbered else stage.mix(mixed)
        self._calls += 1
        return restore(mixed)


class BoundAttack(Bound):
    """An attack in its setting; a stateful attack keeps its state here, and advances by a round
    with each call.
    """

    _made_by = "make_attack"

    def __init__(self, text: str, setting: AttackSetting) -> None:
        super().__init__(text, setting)
        self._attack = self._build(setting)
        self._state = dict(self._attack.initial)

    def _build(self, setting: AttackSetting) -> Attack:
        attack: Attack = REGISTRIES["attacks"].parse(self._text).build(setting)
        return attack

    def __call__(
        self, gradients: Any, byzantine: Any, defence: Callable[[Tensor], Tensor] | None = None
    ) -> Any:
        """Map the workers' own vectors [m, d] and the bool mask [m] to the messages [m, d].

        Args:
            gradients: The own vectors, in any form of a rule's messages; the messages have the same
                form.
            byzantine: The mask: a tensor, an array or a list.
            defence: For attacks that see the defence, a function from messages [m, d] to the
                aggregate [d], such as ``preview`` of a rule. Both are tensors.

        Raises:
            TypeError: The gradients are neither tensors nor arrays.
            ValueError: A shape, type or device is wrong, or the attack needs a defence and none is
                given.
        """
        matrix, restore = read("gradients", gradients)
        _check_vectors("gradients", matrix, self._workers)
        mask, vectors = _checked_mask(byzantine, matrix), _computed_with(matrix)
        attack = self._for(len(matrix), self._attack, self._build)
        seen: tuple[Defence, ...] = ()
        if attack.sees_defence:
            if defence is None:
                raise ValueError(
                    f"attack {self._text!r} sees the defence; pass it as well, such as "
                    "make_aggregator('cwtm', ...).preview"
                )
            seen = (Defence(honest_mean(vectors, mask), defence),)
        messages: Tensor = attack.messages(vectors, mask, self._state, *seen)
        if attack.observe is not None:
            self._state = attack.observe(vectors, mask, self._state)
        self._state = attack.advance(mask, self._state)
        return restore(messages)

    def follow(self, update: Any) -> None:
        """Show the round's server update, in the form of a message, to an attack that follows the
        model; others ignore it.
        """
        if self._attack.follow is not None:
            self._state = self._attack.follow(
                _computed_with(read("update", [update])[0])[0], self._state
            )

    def labels(self, labels: Any, byzantine: Any, classes: int) -> Any:
        """Map the labels [m, n] of the workers' mini-batches to the labels for gradients, for an
        attack on data.
        """
        matrix, restore = read("labels", labels)
        _check_rows("labels", matrix, self._workers)
        if matrix.is_floating_point() or matrix.is_complex() or matrix.dtype == torch.bool:
            raise ValueError(
                f"labels must be whole numbers, not {matrix.dtype}; pass labels.long()"
            )
        mask = _checked_mask(byzantine, matrix)
        attack = self._for(len(matrix), self._attack, self._build)
        return (
            labels
            if attack.labels is None
            else restore(attack.labels(matrix, mask, operator.index(classes)))
        )


def _checked_mask(byzantine: Any, vectors: Tensor) -> Tensor:
    """Return the mask as a tensor; raise ValueError if it does not fit the vectors."""
    mask = byzantine if isinstance(byzantine, Tensor) else np.asarray(byzantine)
    if tuple(mask.shape) != (len(vectors),) or str(mask.dtype) not in ("torch.bool", "bool"):
        raise ValueError(
            f"byzantine must be a bool mask of shape [{len(vectors)}], not {mask.dtype} "
            f"{list(mask.shape)}"
        )
    if not isinstance(mask, Tensor):
        return torch.tensor(mask, device=vectors.device)
    if mask.device != vectors.device:
        raise ValueError(
            f"byzantine is on {mask.device}, and the vectors on {vectors.device}; pass "
            f"byzantine.to({str(vectors.device)!r})"
        )
    return mask


def _check_rows(name: str, matrix: Tensor, workers: int) -> None:
    if matrix.ndim != 2 or not 1 <= matrix.shape[0] <= workers or not matrix.shape[1]:
        raise ValueError(
            f"{name}: expected a matrix of shape [{workers}, d], one row a worker, not "
            f"{list(matrix.shape)}; "
            "d must be at least 1, and workers that did not answer have no row"
        )


def _check_vectors(name: str, matrix: Tensor, workers: int) -> None:
    """Raise ValueError unless rules and attacks can compute with ``matrix``."""
    _check_rows(name, matrix, workers)
    if matrix.dtype not in COMPUTED_IN:
        legal = ", ".join(str(dtype) for dtype in COMPUTED_IN)
        advice = (
            ""
            if matrix.is_complex()
            else f"; pass {name}.float(), or {name}.astype(float) of an array"
        )
        raise ValueError(
            f"{name} must be floating-point numbers ({legal}), not {matrix.dtype}{advice}"
        )
    if matrix.layout != torch.strided or matrix.is_meta:
        raise ValueError(
            f"{name} must be a dense tensor with values, not {matrix.layout} on {matrix.device}"
        )


def _checked_server(server: Any, messages: Tensor) -> Tensor:
    """Return the server's gradient as rules compute with it; raise ValueError unless it fits the
    messages.
    """
    if server is None:
        raise ValueError(
            "the rule needs the server's gradient; pass server=GRADIENT, in the form of a message"
        )
    vector = read("server", [server])[0][0]
    _check_vectors("server", vector[None], 1)
    if (vector.shape, vector.dtype, vector.device) != (
        messages.shape[1:],
        messages.dtype,
        messages.device,
    ):
        raise ValueError(
            f"server is {vector.dtype} {list(vector.shape)} on {vector.device}; the messages "
            f"need {messages.dtype} "
            f"{list(messages.shape[1:])} on {messages.device}"
        )
    return _computed_with(vector)


def _check_remembered(messages: Tensor, remembered: Tensor) -> None:
    """Raise ValueError if a rule that remembers vectors is given others."""
    if remembered.device != messages.device:
        raise ValueError(
            f"messages are on {messages.device}, and those before them were on "
            f"{remembered.device}; "
            "make another aggregator for them"
        )
    expected = COMPUTED_IN[messages.dtype]
    if remembered.ndim and (
        remembered.shape[-1] != messages.shape[1] or remembered.dtype not in (expected, torch.bool)
    ):
        raise ValueError(
            f"messages have {messages.shape[1]} columns in {messages.dtype}, and the rule "
            "remembers a vector of "
            f"{remembered.shape[-1]} in {remembered.dtype}; make another aggregator for them"
        )


def _computed_with(vectors: Tensor) -> Tensor:
    return vectors.to(COMPUTED_IN[vectors.dtype])


def _whole(name: str, value: Any) -> int:
    """Return a whole number, of Python or NumPy; raise SpecError for any other value."""
    try:
        return operator.index(value)
    except TypeError:
        raise SpecError(f"{name}={value!r} is not a whole number. Try: int({name})") from None


def aggregator_setting(
    workers: Any, byzantine: Any, seed: Any, threshold: float | None = None
) -> AggregatorSetting:
    """Return the setting of a rule; raise SpecError for a number that is not whole."""
    return AggregatorSetting(
        _whole("workers", workers), _whole("byzantine", byzantine), threshold, _whole("seed", seed)
    )


def make_aggregator(text: str, *, workers: int, byzantine: int, seed: int = 0) -> BoundAggregator:
    """Make the rule that ``text`` names, with pre-aggregators before it if joined by ``+``
    (``nnm+cwtm``).

    Args:
        text: Such as ``cwtm``, ``cwtm:f=3`` or ``nnm+gm``.
        workers: m, the number of rows of the messages.
        byzantine: The declared number of Byzantine workers; f of the rule, unless the text sets
            ``f=``.
        seed: The seed of random draws, for parts that draw (``bucketing``, ``dnc``, ``signguard``).

    Raises:
        SpecError: The text is not legal, or the rule is not defined for m and f.

    Example:
        >>> import torch
        >>> rule = make_aggregator("cwtm:f=1", workers=3, byzantine=1)
        >>> rule(torch.tensor([[1.0], [2.0], [90.0]]))
        tensor([2.])
    """
    return BoundAggregator(text, aggregator_setting(workers, byzantine, seed))


def make_pre_aggregator(
    text: str, *, workers: int, byzantine: int, seed: int = 0
) -> BoundPreAggregator:
    """Make the pre-aggregator that ``text`` names, or a chain of them joined by ``+``.

    Args:
        text: Such as ``nnm``, ``bucketing:s=2`` or ``bucketing+nnm``.
        workers: m, the number of rows of the messages.
        byzantine: The declared number of Byzantine workers; f of the pre-aggregator, unless the
            text sets ``f=``.
        seed: The seed of random draws, for pre-aggregators that draw.

    Raises:
        SpecError: The text is not legal, or not defined for m and f.

    Example:
        >>> import torch
        >>> stage = make_pre_aggregator("clipping:c=2", workers=2, byzantine=0)
        >>> stage(torch.tensor([[1.0], [5.0]])).flatten()
        tensor([1., 2.])
    """
    return BoundPreAggregator(text, aggregator_setting(workers, byzantine, seed))


def make_attack(
    text: str, *, workers: int, beta: float | None = None, seed: int = 0
) -> BoundAttack:
    """Make the attack that ``text`` names.

    Args:
        text: Such as ``sf`` or ``ipm:epsilon=0.5``.
        workers: m.
        beta: The momentum parameter of the method under attack, if it has one.
        seed: The seed of the attack's own random draws.

    Raises:
        SpecError: The text is not legal, or the attack needs ``beta``.

    Example:
        >>> import torch
        >>> make_attack("sf", workers=2)(torch.ones(2, 1), torch.tensor([False, True])).flatten()
        tensor([ 1., -1.])
    """
    return BoundAttack(
        text, AttackSetting(_whole("workers", workers), plain(beta), seed=_whole("seed", seed))
    )


def make_switching(
    text: str,
    *,
    workers: int,
    byzantine: int,
    seed: int = 0,
    beta: float | None = None,
    jmax: int | None = None,
) -> Switching:
    """Make the switching strategy that ``text`` names; its ``mask(t)`` is the bool mask [m] of tick
    t = 0, 1, ...

    Args:
        text: Such as ``periodic:K=10``.
        workers: m.
        byzantine: The declared number f of Byzantine workers.
        seed: The seed of the schedule.
        beta: The momentum parameter of the method, if it has one.
        jmax: The largest level of the method, if it has levels.

    Raises:
        SpecError: The text is not legal, or the strategy is not defined for m and f.

    Example:
        >>> int(make_switching("periodic:K=10", workers=17, byzantine=8, seed=0).mask(0).sum())
        8
    """
    shared = aggregator_setting(workers, byzantine, seed)
    setting = SwitchingSetting(
        shared.workers, shared.byzantine, shared.seed, plain(beta), plain(jmax)
    )
    switching: Switching = REGISTRIES["switching"].parse(text).build(setting)
    return switching
