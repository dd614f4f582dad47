"""A user's components, one function each: ``@aggregator``, ``@attack``, ``@model``, ``@task``, ...

Positional arguments are the function's data. A keyword-only argument is a parameter of the
component (``name:key=value``), unless the run provides it: ``m``, ``f``, ``seed``, ``beta``,
``generator``, ``data_dir`` and ``server`` are passed by name to a function that asks for them. A
component with state, a proof, or another number of messages needs a factory, like those in the
package of its kind.

Example:
    >>> from dynabro_cli.plugins import aggregator
    >>> @aggregator("first-half", reference="an example")
    ... def first_half(messages, *, f: int, keep: Annotated[float, Range(above=0)] = 0.5):
    ...     "Mean of the first messages."
    ...     return messages[: max(1, int(keep * (len(messages) - f)))].mean(0)
    >>> from dynabro_cli import make_aggregator
    >>> rule = make_aggregator("first-half:keep=1", workers=3, byzantine=1)
    >>> rule(torch.tensor([[1.0], [3.0], [9.0]]))
    tensor([2.])
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, get_args, get_origin

from dynabro_cli.components.aggregators._api import SERVER, Aggregator, AggregatorSetting, tolerated
from dynabro_cli.components.attacks._api import (
    Attack,
    AttackSetting,
    honest_mean,
    honest_spread,
    replace,
    stay,
)
from dynabro_cli.components.methods._api import REGISTRY as METHODS
from dynabro_cli.components.methods._api import (
    GatheringMethod,
    JudgingMethod,
    MeansMethod,
    MethodSetting,
    State,
)
from dynabro_cli.components.models._api import LabelledInputs, WorkerLabels
from dynabro_cli.components.partitions._api import Partition, PartitionSetting, at_server
from dynabro_cli.components.pre_aggregators._api import PreAggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.components.switching._api import Switching, SwitchingSetting, check_count
from dynabro_cli.components.tasks._api import ImageShape, Task, TaskSetting
from dynabro_cli.components.tasks._arrays import make_task
from dynabro_cli.core.errors import PluginError
from dynabro_cli.core.lazy import Late, nn, np, torch
from dynabro_cli.core.registration import METRICS, parameter, plain
from dynabro_cli.core.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "GatheringMethod",
    "ImageShape",
    "JudgingMethod",
    "LabelledInputs",
    "MeansMethod",
    "MethodSetting",
    "Range",
    "State",
    "WorkerLabels",
    "aggregator",
    "attack",
    "honest_mean",
    "honest_spread",
    "make_task",
    "method",
    "metrics",
    "model",
    "parameter",
    "partition",
    "pre_aggregator",
    "switching",
    "task",
]

Function = TypeVar("Function", bound=Callable[..., Any])
GIVEN = ("m", "f", "seed", "beta", "generator", "data_dir", "server")
"""Names that a run can provide; each kind has some of them."""
TYPES = (int, float, bool, str)

method = METHODS.register
"""Register a factory of a method: ``@method(name, Parameters, reference=...)``."""


class Decorator(Protocol):
    """Decorator that registers a function and returns it unchanged."""

    def __call__(self, function: Function, /) -> Function: ...


@dataclasses.dataclass(frozen=True)
class Range:
    """Legal values of a parameter, and its meaning: ``keep: Annotated[float, Range(above=0,
    maximum=1)] = 0.5``.
    """

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] | None = None
    help: str = "see the definition"


def aggregator(name: str, *, reference: str = "own") -> Decorator:
    """Register ``function(messages [m, d]) -> [d]``; it may ask for ``m``, ``f``, ``seed`` and
    ``server``.

    With ``f``, 2f < m must hold. ``server`` is the server's own gradient [d], of the samples that
    it holds (``--data iid:server=100``).
    """

    def build(call: Callable[..., Any], asked: set[str], setting: AggregatorSetting) -> Aggregator:
        call = _of_messages(name, call, asked, setting)

        def aggregate(
            messages: Tensor, state: dict[str, Tensor], _: int | Tensor
        ) -> tuple[Tensor, dict[str, Tensor]]:
            bound = functools.partial(call, server=state[SERVER]) if "server" in asked else call
            return _checked(f"aggregator {name!r}", bound, messages, "d"), {}

        return Aggregator(aggregate, None, needs_server="server" in asked)

    return _registered("aggregators", name, reference, ("m", "f", "seed", "server"), build)


def pre_aggregator(name: str, *, reference: str = "own") -> Decorator:
    """Register ``function(messages [m, d]) -> [m, d]``; it may ask for ``m``, ``f`` and
    ``seed``.
    """

    def build(
        call: Callable[..., Any], asked: set[str], setting: AggregatorSetting
    ) -> PreAggregator:
        call = _of_messages(name, call, asked, setting)

        def mix(messages: Tensor) -> Tensor:
            return _checked(f"pre-aggregator {name!r}", call, messages, "m, d")

        return PreAggregator(mix, workers=setting.workers, kappa=lambda _: None)

    return _registered("pre_aggregators", name, reference, ("m", "f", "seed"), build)


def attack(name: str, *, reference: str = "own", reads_own: bool = True) -> Decorator:
    """Register ``function(own [m, d], byzantine [m])``, which returns the Byzantine messages: [d],
    [m, d] or a number.

    It may ask for ``m``, ``beta``, ``seed`` and ``generator`` (NumPy's, a new one in every round).
    If all workers are Byzantine, ``honest_mean`` counts their own vectors as honest.

    Args:
        name: The attack's name.
        reference: Its source.
        reads_own: False if it never reads Byzantine workers' own vectors; they are then not
            computed.
    """

    def build(call: Callable[..., Any], asked: set[str], setting: AttackSetting) -> Attack:
        call = _given(call, asked, m=setting.workers, beta=setting.beta, seed=setting.seed)
        streams, draws = Streams(setting.seed), "generator" in asked

        def messages(vectors: Tensor, byzantine: Tensor, state: Mapping[str, Tensor]) -> Tensor:
            drawn = {"generator": streams.generator("attack", int(state["calls"]))} if draws else {}
            sent = functools.partial(call, byzantine=byzantine, **drawn)
            return replace(
                vectors, byzantine, _checked(f"attack {name!r}", sent, vectors, "d", "m, d", "")
            )

        if not draws:
            return Attack({}, messages, stay, reads_own)
        initial = Late(lambda: {"calls": torch.zeros((), dtype=torch.int64)})
        return Attack(initial, messages, lambda _, state: {"calls": state["calls"] + 1}, reads_own)

    return _registered("attacks", name, reference, ("m", "beta", "seed", "generator"), build)


def switching(name: str, *, reference: str = "own") -> Decorator:
    """Register ``function(tick)``, which returns the bool mask [m] of the workers that are
    Byzantine at a tick.

    It may ask for ``m``, ``f``, ``beta``, ``seed`` and ``generator`` (NumPy's, a new one at every
    tick).
    """

    def build(call: Callable[..., Any], asked: set[str], setting: SwitchingSetting) -> Switching:
        check_count(setting)
        call = _given(
            call,
            asked,
            m=setting.workers,
            f=setting.byzantine,
            beta=setting.beta,
            seed=setting.seed,
        )
        streams, draws = Streams(setting.seed), "generator" in asked

        def mask(tick: int) -> Tensor:
            from dynabro_cli.gradients.generators import seeded

            drawn = {"generator": streams.generator("identities", tick)} if draws else {}
            with seeded(streams.integer("identities", tick)):
                drawn_mask = torch.as_tensor(call(tick, **drawn))
            if drawn_mask.dtype != torch.bool or tuple(drawn_mask.shape) != (setting.workers,):
                raise _wrong(
                    f"switching {name!r}", _described(drawn_mask), f"bool [m] = [{setting.workers}]"
                )
            return drawn_mask

        return Switching(mask)

    return _registered("switching", name, reference, ("m", "f", "beta", "seed", "generator"), build)


def model(name: str, *, reference: str = "own") -> Decorator:
    """Register ``function(shape)``, which returns a torch module from images [n, c, h, w] to logits
    [n, classes].
    """

    def build(call: Callable[..., Any], _: set[str], shape: ImageShape) -> nn.Module:
        network = call(shape)
        if not isinstance(network, nn.Module):
            raise _wrong(f"model {name!r}", type(network).__name__, "torch.nn.Module")
        return network

    return _registered("models", name, reference, (), build)


def metrics(function: Function) -> Function:
    """Register ``function(model, data)``, which returns numbers by name; it is called at every
    evaluation of every run.

    ``model`` is the torch module in evaluation mode, and ``data`` the test set: ``data.inputs`` [n,
    c, h, w] and ``data.labels`` [n]. The function must not change them. It may ask for
    ``worker_labels``: (worker, label, count) of the training samples; empty if all workers have all
    samples. The numbers are rows of the table ``metrics``, and ``dynabro plot --metric NAME`` draws
    them.
    """
    METRICS[function.__name__] = function
    return function


def partition(name: str, *, reference: str = "own") -> Decorator:
    """Register ``function(labels [n])``, which returns m arrays with the indices of each worker's
    samples.

    The server's samples (``server=N``) are not among them. It may ask for ``m``, ``seed`` and
    ``generator`` (NumPy's).
    """

    def build(call: Callable[..., Any], asked: set[str], setting: PartitionSetting) -> Partition:
        def split(labels: np.ndarray[Any, Any], streams: Streams) -> list[np.ndarray[Any, Any]]:
            values = {
                "m": setting.workers,
                "seed": streams.seed,
                "generator": streams.generator("partition", 0),
            }
            parts = [
                np.asarray(part, dtype=np.int64) for part in _given(call, asked, **values)(labels)
            ]
            if len(parts) != setting.workers or not np.array_equal(
                np.sort(np.concatenate(parts)), np.arange(len(labels))
            ):
                samples = sum(map(len, parts))
                expected = f"{setting.workers} arrays with each of the {len(labels)} samples once"
                raise _wrong(
                    f"partition {name!r}", f"{len(parts)} arrays with {samples} samples", expected
                )
            return parts

        return Partition(split)

    return _registered(
        "partitions",
        name,
        reference,
        ("m", "seed", "generator"),
        build,
        (("server", int, at_server()),),
    )


def task(name: str, *, reference: str = "own", featurewise: bool = False) -> Decorator:
    """Register ``function()``, which returns arrays ``(X, y)`` or ``(X, y, X_test, y_test)`` for
    ``make_task``.

    The function may ask for ``data_dir``, the folder of data sets. It is called when the data are
    needed. ``featurewise`` gives each column of a table its own mean and deviation.
    """

    def build(call: Callable[..., Any], asked: set[str], setting: TaskSetting) -> Task:
        folder: Path = setting.data_dir
        arrays = _given(call, asked, data_dir=folder)
        return make_task(arrays, name=name, featurewise=featurewise)

    return _registered("tasks", name, reference, ("data_dir",), build)


def _registered(
    kind: str,
    name: str,
    reference: str,
    offered: tuple[str, ...],
    build: Callable[..., Any],
    more: tuple[tuple[str, type, Any], ...] = (),
) -> Decorator:
    """Return the decorator: the function's parameters become a block, and a factory passes their
    values to the function.

    ``more`` are fields of the block that every component of the kind has, and that the function
    does not get.
    """

    registry = REGISTRIES[kind]

    def decorate(function: Function) -> Function:
        block, asked = _read(function, f"{registry.kind} {name!r}", offered)
        keys = [field.name for field in dataclasses.fields(block)]
        if more:
            block = dataclasses.make_dataclass("Parameters", more, bases=(block,), frozen=True)

        @functools.wraps(function)
        def factory(parameters: Any, setting: Any) -> Any:
            values = {key: getattr(parameters, key) for key in keys}
            return build(functools.partial(function, **values), asked, setting)

        registry.register(name, block, reference=reference)(factory)
        return function

    return decorate


def _read(
    function: Callable[..., Any], who: str, offered: tuple[str, ...]
) -> tuple[type, set[str]]:
    """Return the parameter block of a function's keyword-only arguments, and the names among them
    that the run provides.

    Raises:
        TypeError: An argument's type cannot be written in a component's text, or the kind does not
            know its name.
    """
    fields, asked = [], set()
    for name, argument in inspect.signature(function).parameters.items():
        if argument.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if name in offered:
            asked.add(name)
            continue
        if name in GIVEN:
            raise TypeError(
                f"{who}: {name} is not known to it. Try: "
                f"{', '.join(offered) or 'another name'}, or a factory"
            )
        missing = argument.default is inspect.Parameter.empty
        hint = argument.annotation
        if isinstance(hint, str):
            hint = eval(hint, getattr(function, "__globals__", {}))
        if hint is inspect.Parameter.empty:
            hint = type(plain(argument.default))
        legal = next((part for part in get_args(hint)[1:] if isinstance(part, Range)), Range())
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if kind not in TYPES:
            raise TypeError(
                f"{who}: {name} is of type {kind!r}, which no text can set. Try: {name}: float "
                "= 1.0"
            )
        default = dataclasses.MISSING if missing else plain(argument.default)
        fields.append((name, kind, parameter(default, **vars(legal))))
    required_first = sorted(fields, key=lambda field: field[2].default is not dataclasses.MISSING)
    return dataclasses.make_dataclass("Parameters", required_first, frozen=True), asked


def _given(call: Callable[..., Any], asked: set[str], **values: Any) -> Callable[..., Any]:
    return functools.partial(
        call, **{name: value for name, value in values.items() if name in asked}
    )


def _of_messages(
    name: str, call: Callable[..., Any], asked: set[str], setting: AggregatorSetting
) -> Callable[..., Any]:
    f = tolerated(name, None, setting) if "f" in asked else 0
    return _given(call, asked, m=setting.workers, f=f, seed=setting.seed)


def _checked(who: str, call: Callable[..., Any], vectors: Tensor, *what: str) -> Tensor:
    """Return a function's result for vectors [m, d], if it has one of the shapes and the vectors
    are unchanged.

    Raises:
        PluginError: The shape is wrong, or the vectors changed; the message names the function, its
            result and the expected shapes.
    """
    # a compiled function cannot read the counter of changes
    tracing = torch.compiler.is_compiling()
    before = 0 if tracing else vectors._version
    returned = call(vectors)
    if not isinstance(returned, torch.Tensor):
        returned = plain(returned)
    if "" in what and isinstance(returned, int | float):
        return torch.full_like(vectors[0], returned)
    m, d = vectors.shape
    shapes = {"d": (d,), "m, d": (m, d), "": ()}
    if (
        not isinstance(returned, torch.Tensor)
        or returned.dtype != vectors.dtype
        or tuple(returned.shape) not in [shapes[shape_name] for shape_name in what]
    ):
        words = " or ".join(
            f"{vectors.dtype} [{shape_name}] = {list(shapes[shape_name])}"
            for shape_name in what
            if shape_name
        )
        raise _wrong(who, _described(returned), words)
    if not tracing and vectors._version != before:
        raise PluginError(
            f"{who} changed the vectors that it was given. Try: vectors.clone() before an "
            "in-place operation"
        )
    return returned.clone()  # may be a view of a vector


def _described(value: Any) -> str:
    return (
        f"{value.dtype} {list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else type(value).__name__
    )


def _wrong(who: str, returned: str, expected: str) -> PluginError:
    return PluginError(
        f"{who} returned {returned}; expected {expected}. Try: its test, or a print of the shape"
    )
