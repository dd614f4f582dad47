"""Components in Python, for notebooks: one object for each, with its state inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from dynabro_cli.aggregators._api import SERVER, AggregatorSetting
from dynabro_cli.attacks._api import Attack, AttackSetting, Defence, honest_mean
from dynabro_cli.experiment.resolve import REGISTRIES
from dynabro_cli.pre_aggregators._api import PreAggregator
from dynabro_cli.pre_aggregators._chain import build_chain, split_chain
from dynabro_cli.switching._api import Switching, SwitchingSetting
from dynabro_cli.vectors.finite import sound

COMPUTED_IN = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""Legal types of vectors, and the type in which each is computed."""


class BoundAggregator:
    """An aggregation rule in its setting; a stateful rule keeps its state here."""

    def __init__(self, text: str, setting: AggregatorSetting) -> None:
        *chain, rule = split_chain(text) or [text]
        registry = REGISTRIES["pre_aggregators"]
        self._workers = setting.workers
        self._rule = build_chain(REGISTRIES["aggregators"].parse(rule), [registry.parse(part) for part in chain], setting)
        self._state: dict[str, Tensor] = {}

    @property
    def kappa(self) -> float | None:
        """The proved constant of (delta, kappa)-robustness at delta = f/m; None if no constant is proved."""
        return self._rule.kappa

    def __call__(self, messages: Tensor, computations: int = 1, server: Tensor | None = None) -> Tensor:
        """Aggregate messages [m, d], each the mean of ``computations`` mini-batches, to [d], of their type.

        ``server`` is the server's gradient [d], of the type and on the device of the messages, for a rule that needs it.

        The messages are floating-point numbers on any device, contiguous or not. Half-precision types are computed in single
        precision. Gradients flow through rules that are differentiable.

        Raises:
            TypeError: The messages are not a tensor.
            ValueError: The messages have another shape or type, or no columns; or their shape, type or device differs from the
                vectors that the rule remembers. Or the rule needs the server's gradient, and it is not given.
        """
        result, self._state = self._aggregated(messages, computations, server)
        return result

    def preview(self, messages: Tensor, computations: int = 1, server: Tensor | None = None) -> Tensor:
        """Return the result of a call without changing a stateful rule."""
        return self._aggregated(messages, computations, server)[0]

    def _aggregated(self, messages: Tensor, computations: int, server: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        _check_vectors("messages", messages, self._workers)
        given: dict[str, Tensor] = {}
        if self._rule.needs_server:
            given[SERVER] = _checked_server(server, messages)
        for value in self._state.values():
            _check_remembered(messages, value)
        result, state = self._rule.aggregate(_computed_with(messages), self._state | given, computations)
        return result.to(messages.dtype), {name: value.detach() for name, value in state.items()}


class BoundPreAggregator:
    """A pre-aggregator, or a chain of them, in its setting; the call's number, for random draws, is kept here.

    Attributes:
        workers: The number m' of messages that come out.
    """

    def __init__(self, text: str, setting: AggregatorSetting) -> None:
        self._workers = setting.workers
        self._stages: list[PreAggregator] = []
        for part in split_chain(text):
            self._stages.append(REGISTRIES["pre_aggregators"].parse(part).build(setting))
            setting = dataclasses.replace(setting, workers=self._stages[-1].workers)
        self.workers = setting.workers
        self._calls = 0

    def __call__(self, messages: Tensor) -> Tensor:
        """Map messages [m, d] to messages [m', d], of their type; a message with a NaN or an Inf counts as 0.

        Raises:
            TypeError: The messages are not a tensor.
            ValueError: The messages have another shape or type, or no columns.
        """
        _check_vectors("messages", messages, self._workers)
        mixed = sound(_computed_with(messages))[0]
        for place, stage in enumerate(self._stages):
            number = torch.tensor(self._calls * len(self._stages) + place, device=mixed.device)
            mixed = stage.mix(mixed, number) if stage.numbered else stage.mix(mixed)
        self._calls += 1
        return mixed.to(messages.dtype)


class BoundAttack:
    """An attack in its setting; a stateful attack keeps its state here, and advances by a round with each call."""

    def __init__(self, text: str, setting: AttackSetting) -> None:
        component = REGISTRIES["attacks"].parse(text)
        self._name: str = component.name
        self._attack: Attack = component.build(setting)
        self._workers = setting.workers
        self._state = dict(self._attack.initial)

    def __call__(self, gradients: Tensor, byzantine: Tensor, defence: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Map the workers' own vectors [m, d] and the bool mask [m] to the messages [m, d].

        Args:
            gradients: The own vectors.
            byzantine: The mask.
            defence: For attacks that see the defence, a function from messages [m, d] to the aggregate [d], such as ``preview``
                of a rule.

        Raises:
            TypeError: The gradients or the mask are not a tensor.
            ValueError: A shape, type or device is wrong, or the attack needs a defence and none is given.
        """
        _check_vectors("gradients", gradients, self._workers)
        self._check_mask(byzantine, gradients.device)
        given, gradients = gradients, _computed_with(gradients)
        seen: tuple[Defence, ...] = ()
        if self._attack.sees_defence:
            if defence is None:
                raise ValueError(
                    f"attack {self._name!r} sees the defence; pass it as well, such as make_aggregator('cwtm', ...).preview"
                )
            seen = (Defence(honest_mean(gradients, byzantine), defence),)
        messages: Tensor = self._attack.messages(gradients, byzantine, self._state, *seen)
        if self._attack.observe is not None:
            self._state = self._attack.observe(gradients, byzantine, self._state)
        self._state = self._attack.advance(byzantine, self._state)
        return messages.to(given.dtype)

    def follow(self, update: Tensor) -> None:
        """Show the round's server update [d] to an attack that follows the model; other attacks ignore it."""
        if self._attack.follow is not None:
            self._state = self._attack.follow(_computed_with(update[None])[0], self._state)

    def labels(self, labels: Tensor, byzantine: Tensor, classes: int) -> Tensor:
        """Map the labels [m, n] of the workers' mini-batches to the labels for gradients, for an attack on data."""
        _check_rows("labels", labels, self._workers)
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise ValueError(f"labels must be whole numbers, not {labels.dtype}; pass labels.long()")
        self._check_mask(byzantine, labels.device)
        return labels if self._attack.labels is None else self._attack.labels(labels, byzantine, classes)

    def _check_mask(self, byzantine: Tensor, device: torch.device) -> None:
        _check_tensor("byzantine", byzantine)
        if byzantine.device != device:
            raise ValueError(
                f"byzantine is on {byzantine.device}, and the vectors on {device}; pass byzantine.to({str(device)!r})"
            )
        if byzantine.shape != (self._workers,) or byzantine.dtype != torch.bool:
            raise ValueError(
                f"byzantine must be a bool tensor of shape [{self._workers}], not {byzantine.dtype} {list(byzantine.shape)}"
            )


def _check_tensor(name: str, given: object) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a torch tensor, not {type(given).__name__}; pass torch.as_tensor({name})")


def _check_rows(name: str, matrix: Tensor, workers: int) -> None:
    _check_tensor(name, matrix)
    if matrix.ndim != 2 or matrix.shape[0] != workers or not matrix.shape[1]:
        raise ValueError(
            f"{name}: expected a matrix of shape [{workers}, d], one row a worker, not {list(matrix.shape)}; "
            "d must be at least 1"
        )


def _check_vectors(name: str, matrix: Tensor, workers: int) -> None:
    """Raise TypeError or ValueError unless rules and attacks can compute with ``matrix``."""
    _check_rows(name, matrix, workers)
    if matrix.dtype not in COMPUTED_IN:
        legal = ", ".join(str(dtype) for dtype in COMPUTED_IN)
        advice = "" if matrix.is_complex() else f"; pass {name}.float()"
        raise ValueError(f"{name} must be floating-point numbers ({legal}), not {matrix.dtype}{advice}")
    if matrix.layout != torch.strided or matrix.is_meta:
        raise ValueError(f"{name} must be a dense tensor with values, not {matrix.layout} on {matrix.device}")


def _checked_server(server: Tensor | None, messages: Tensor) -> Tensor:
    """Return the server's gradient as rules compute with it; raise ValueError unless it fits the messages."""
    if server is None:
        raise ValueError("the rule needs the server's gradient; pass server=GRADIENT, a vector [d]")
    _check_tensor("server", server)
    _check_vectors("server", server[None], 1)
    if (server.shape, server.dtype, server.device) != (messages.shape[1:], messages.dtype, messages.device):
        raise ValueError(
            f"server is {server.dtype} {list(server.shape)} on {server.device}; the messages need {messages.dtype} "
            f"{list(messages.shape[1:])} on {messages.device}"
        )
    return _computed_with(server)


def _check_remembered(messages: Tensor, remembered: Tensor) -> None:
    """Raise ValueError if a rule that remembers vectors is given others."""
    if remembered.device != messages.device:
        raise ValueError(
            f"messages are on {messages.device}, and those before them were on {remembered.device}; "
            "make another aggregator for them"
        )
    expected = COMPUTED_IN[messages.dtype]
    if remembered.ndim and (remembered.shape[-1] != messages.shape[1] or remembered.dtype not in (expected, torch.bool)):
        raise ValueError(
            f"messages have {messages.shape[1]} columns in {messages.dtype}, and the rule remembers a vector of "
            f"{remembered.shape[-1]} in {remembered.dtype}; make another aggregator for them"
        )


def _computed_with(vectors: Tensor) -> Tensor:
    return vectors.to(COMPUTED_IN[vectors.dtype])


def make_aggregator(text: str, *, workers: int, byzantine: int, seed: int = 0) -> BoundAggregator:
    """Make the rule that ``text`` names, with pre-aggregators before it if joined by ``+`` (``nnm+cwtm``).

    Args:
        text: Such as ``cwtm``, ``cwtm:f=3`` or ``nnm+gm``.
        workers: m, the number of rows of the messages.
        byzantine: The declared number of Byzantine workers; f of the rule, unless the text sets ``f=``.
        seed: The seed of random draws, for parts that draw (``bucketing``, ``dnc``, ``signguard``).

    Raises:
        SpecError: The text is not legal, or the rule is not defined for m and f.

    Example:
        >>> import torch
        >>> make_aggregator("cwtm:f=1", workers=3, byzantine=1)(torch.tensor([[1.0], [2.0], [90.0]]))
        tensor([2.])
    """
    return BoundAggregator(text, AggregatorSetting(workers, byzantine, seed=seed))


def make_pre_aggregator(text: str, *, workers: int, byzantine: int, seed: int = 0) -> BoundPreAggregator:
    """Make the pre-aggregator that ``text`` names, or a chain of them joined by ``+``.

    Args:
        text: Such as ``nnm``, ``bucketing:s=2`` or ``bucketing+nnm``.
        workers: m, the number of rows of the messages.
        byzantine: The declared number of Byzantine workers; f of the pre-aggregator, unless the text sets ``f=``.
        seed: The seed of random draws, for pre-aggregators that draw.

    Raises:
        SpecError: The text is not legal, or not defined for m and f.

    Example:
        >>> import torch
        >>> make_pre_aggregator("clipping:c=2", workers=2, byzantine=0)(torch.tensor([[1.0], [5.0]])).flatten()
        tensor([1., 2.])
    """
    return BoundPreAggregator(text, AggregatorSetting(workers, byzantine, seed=seed))


def make_attack(text: str, *, workers: int, beta: float | None = None, seed: int = 0) -> BoundAttack:
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
    return BoundAttack(text, AttackSetting(workers, beta, seed=seed))


def make_switching(
    text: str, *, workers: int, byzantine: int, seed: int = 0, beta: float | None = None, jmax: int | None = None
) -> Switching:
    """Make the switching strategy that ``text`` names; its ``mask(t)`` is the bool mask [m] of tick t = 0, 1, ...

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
    switching: Switching = REGISTRIES["switching"].parse(text).build(SwitchingSetting(workers, byzantine, seed, beta, jmax))
    return switching
