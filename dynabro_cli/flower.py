"""A strategy for Flower that aggregates with any rule: ``pip install 'dynabro[flower]'``.

In a ``ServerApp``; a ``ClientApp`` needs no change::

    strategy = RobustStrategy("nnm+cwtm", byzantine=2, fraction_train=0.5)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=10)
"""

from __future__ import annotations

import functools
import logging
import math
from collections import ChainMap, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dynabro_cli.components.aggregators._api import Aggregator
from dynabro_cli.components.api import aggregator_setting, build_rule
from dynabro_cli.components.forms import read
from dynabro_cli.core.errors import SpecError

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
except ImportError as error:
    raise ImportError(
        f"dynabro_cli.flower needs Flower 1.42 or newer ({error}). "
        "Try: pip install 'dynabro[flower]'"
    ) from None

Arrays: TypeAlias = "dict[str, np.ndarray[Any, Any]]"
LOG = logging.getLogger("flwr")


class RobustStrategy(FedAvg):  # type: ignore[misc]
    """Aggregate the updates of nodes with a robust rule, in place of FedAvg's weighted mean.

    In a round, the sampled nodes get the model x, and r of them return valid arrays y_i:
    x <- x + A(y_1 - x, ..., y_r - x), where the rule A tolerates f Byzantine nodes among r.
    Differences have single precision; double, if an array has more than 32 bits. State of the rule
    (``centered-clipping``) stays from round to round.

    What a node claims about itself, such as ``num-examples``, has no weight. An array of integers
    or booleans, such as ``num_batches_tracked``, becomes the lower median of the replies in each
    coordinate. A metric becomes the median of at least 2f + 1 finite values, else it is left out.

    A reply is valid if its only ``ArrayRecord`` has the names, shapes and types of x, and its
    differences are finite. Invalid, failed and missing replies do not lower f: honest nodes fail
    too, so all f Byzantine nodes may be among the r. If the rule is not defined for r and f, or its
    result is not finite, the model does not change, and a warning says so.

    Args:
        rule: Such as ``cwtm``, ``cwtm:f=3`` or ``nnm+gm``, as everywhere in dynabro.
        byzantine: f, the largest number of Byzantine nodes among those that a round samples.
        seed: The seed of random draws, for rules that draw.
        **fedavg: Arguments of Flower's ``FedAvg``. By default, ``min_train_nodes`` and
            ``min_evaluate_nodes`` are 2f + 1.

    Raises:
        SpecError: The text is not legal, the rule is not defined for f and ``min_train_nodes``, or
            it needs the server's gradient or the same nodes in every round.
    """

    def __init__(self, rule: str, *, byzantine: int, seed: int = 0, **fedavg: Any) -> None:
        self._text, self._setting = rule, aggregator_setting(1, byzantine, seed)
        least = 2 * byzantine + 1
        median = functools.partial(_medians, least=least)
        usual: dict[str, Any] = {
            "min_train_nodes": least,
            "min_evaluate_nodes": least,
            "train_metrics_aggr_fn": median,
            "evaluate_metrics_aggr_fn": median,
        }
        super().__init__(**(usual | fedavg))
        built = self._rule(self.min_train_nodes or least)
        if built.needs_server or built.by_number:
            raise SpecError(
                f"rule={rule}: it needs the server's gradient, or the same nodes in every round. "
                "Try: nnm+cwtm"
            )
        self._model: Arrays = {}
        self._state: dict[str, Tensor] = {}
        self._lost = defaultdict[int, list[float]](list)

    def _rule(self, replies: int) -> Aggregator:
        """Return the rule for r replies; raise SpecError unless it is defined for f among r."""
        f = self._setting.byzantine
        if not 0 <= 2 * f < replies:
            raise SpecError(
                f"byzantine={f}: not legal with {replies} nodes; more than half must be honest. "
                f"Try: min_train_nodes={2 * abs(f) + 1}"
            )
        return build_rule(self._text, replace(self._setting, workers=replies))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Sample nodes as FedAvg does, and remember the model that they get.

        Raises:
            SpecError: The rule is not defined for the number of nodes, or arrays of the model have
                an illegal type.
        """
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._model = {name: array.numpy() for name, array in arrays.items()} if messages else {}
        if messages:
            self._rule(len(messages))
            if not {"f"} <= {part.dtype.kind for part in self._model.values()} <= set("fiub"):
                raise SpecError(
                    "arrays: expected floating-point numbers, and otherwise integers and booleans. "
                    "Try: ArrayRecord(model.state_dict())"
                )
        return messages

    @np.errstate(all="ignore")
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model and the metrics; None for both if the model does not change."""
        answers, _ = self._check_and_log_replies(replies, is_train=True)
        if not self._model:
            return None, None
        updates, invalid = dict[int, Arrays](), dict[int, str]()
        contents = {answer.metadata.src_node_id: answer.content for answer in answers}
        for node in sorted(contents):  # the order of arrival changes nothing
            try:
                updates[node] = self._update(contents[node])
            except ValueError as error:
                invalid[node] = str(error)
                self._lost[node].append(1.0)
        if invalid:
            LOG.warning("aggregate_train: invalid replies were left out, by node: %s", invalid)
        try:
            arrays = self._next(updates)
        except SpecError as error:
            LOG.warning("aggregate_train: the model does not change: %s", error)
            return None, None
        valid = [contents[node] for node in updates]
        return arrays, self.train_metrics_aggr_fn(valid, self.weighted_by_key)

    def _update(self, content: RecordDict) -> Arrays:
        """Return a reply's floating-point arrays as differences to the model, with its other
        arrays; raise ValueError if the reply is invalid.
        """
        record, *more = content.array_records.values() or [{}]
        if more or record.keys() != self._model.keys():
            raise ValueError("names of arrays differ from the model's")
        update: Arrays = {}
        for name, part in self._model.items():
            try:
                theirs = record[name].numpy()
                same = (theirs.shape, theirs.dtype) == (part.shape, part.dtype)
            except Exception:  # the bytes may be anything
                same = False
            if not same:
                raise ValueError(f"{name} has another shape or type")
            if part.dtype.kind == "f":
                theirs = np.asarray(theirs - part.astype(np.result_type(part, np.float32)))
                if not np.isfinite(theirs).all():
                    raise ValueError(f"{name} has NaN or Inf")
            update[name] = theirs
        return update

    def _next(self, updates: dict[int, Arrays]) -> ArrayRecord:
        """Return the model after the aggregate of the updates; raise SpecError if the rule is not
        defined, or the model not finite.
        """
        rule = self._rule(len(updates))
        floats = [name for name, part in self._model.items() if part.dtype.kind == "f"]
        given = [{name: update[name] for name in floats} for update in updates.values()]
        vectors, restore = read("updates", given)
        for node, share in zip(updates, _cut_off(rule, vectors, self._state), strict=True):
            self._lost[node].append(share)
        aggregate, self._state = rule.aggregate(vectors, self._state, 1)
        step, middle = restore(aggregate), (len(updates) - 1) // 2
        record = ArrayRecord()
        for name, part in self._model.items():
            if name in step:
                new = (part + step[name]).astype(part.dtype)
                if not np.isfinite(new).all():
                    raise SpecError(f"rule={self._text}: {name} would have NaN or Inf")
            else:
                new = np.sort([update[name] for update in updates.values()], 0)[middle]
            record[name] = Array(np.asarray(new))
        return record

    def _check_and_log_replies(
        self, replies: Iterable[Message], is_train: bool, validate: bool = False
    ) -> Any:
        # Flower would end the run at a reply that is unlike the others
        return super()._check_and_log_replies(replies, is_train, validate=False)

    def suspects(self, reset: bool = False) -> dict[int, float]:
        """Return for each node the share of its updates that was cut off, in [0, 1], as a mean over
        the rounds in which it answered since the last reset.

        The share is about 0 for a node that counts as in a mean, and 1 for an invalid reply.
        ``cwtm`` cuts off 2f/m of an honest node on average, and ``cwmed`` (m - 1)/m; Byzantine
        nodes have more. NaN if the rule's aggregate has no derivative, such as ``sign-majority``.
        """
        shares = {node: float(np.mean(rounds)) for node, rounds in self._lost.items()}
        if reset:
            self._lost.clear()
        return shares


def _cut_off(rule: Aggregator, vectors: Tensor, state: dict[str, Tensor]) -> list[float]:
    """Return the share of each vector [d] that does not reach the aggregate, by its derivative.

    In coordinate k, the weight of vector i is dA_k / dg_ik, and max(0, 1 - m weight) of it is cut
    off. One pass gives all weights: random signs z cancel other derivatives in z_k d(z A) / dg_ik.
    NaN if the aggregate has no derivative.
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, vectors[0].shape, generator=generator).to(vectors) * 2 - 1
    with torch.enable_grad():
        vectors = vectors.detach().requires_grad_()
        aggregate = rule.aggregate(vectors, state, 1)[0]
    if not aggregate.requires_grad:
        return [math.nan] * len(vectors)
    weights = signs * torch.autograd.grad(aggregate, vectors, signs)[0]
    lost = (1 - len(weights) * weights).clamp(0, 1)
    shares: list[float] = lost.where(weights.any(0), math.nan).nanmean(1).tolist()
    return shares


def _medians(contents: list[RecordDict], weighted_by_key: str, *, least: int) -> MetricRecord:
    """Return the median of each metric that ``least`` or more contents have, with finite values of
    the same length.
    """
    reported = defaultdict[Any, list[Any]](list)
    for content in contents:
        # a node has one value of a name, however many records it sends
        for name, value in ChainMap(*content.metric_records.values()).items():
            if name != weighted_by_key and np.isfinite(value).all():
                reported[name, np.shape(value)].append(value)
    return MetricRecord(
        {
            name: np.median(values, 0).tolist()
            for (name, _), values in reported.items()
            if len(values) >= least
        }
    )
