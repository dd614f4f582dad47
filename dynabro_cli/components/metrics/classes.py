"""Test accuracy of each class and of each worker (``--metrics classes``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.core.lazy import torch
from dynabro_cli.core.registration import METRICS

if TYPE_CHECKING:
    from torch import nn

    from dynabro_cli.components.models._api import LabelledInputs, WorkerLabels

AT_ONCE = 1000
"""Samples of a forward pass."""
MOST_WORKERS = 100
"""Most workers whose accuracies are stored one by one."""


def classes(
    model: nn.Module, data: LabelledInputs, *, worker_labels: WorkerLabels
) -> dict[str, float]:
    """Test accuracy of each class and each worker, and the lowest ones.

    a_c is the accuracy on the test samples of class c. A worker's accuracy is sum_c p_c a_c with
    p_c the share of class c in the worker's training samples: the accuracy on a test set whose
    labels are distributed like the worker's own data. Classes without test samples do not count.

    Returns:
        ``class C`` for each class and ``worst class``. If workers have different data, also
        ``worker I`` for each of at most 100 workers, from 0 as in the table ``worker_labels``, and
        ``worst worker``.
    """
    with torch.no_grad():
        right = (
            torch.cat([model(part).argmax(1) for part in torch.split(data.inputs, AT_ONCE)])
            == data.labels
        )
    accuracies = {
        label: float(right[data.labels == label].double().mean())
        for label in torch.unique(data.labels).tolist()
    }
    samples, correct = dict[int, int](), dict[int, float]()
    for worker, label, count in worker_labels:
        if label in accuracies:
            samples[worker] = samples.get(worker, 0) + count
            correct[worker] = correct.get(worker, 0) + count * accuracies[label]
    of_workers = {worker: correct[worker] / samples[worker] for worker in samples}
    values = {f"class {label}": accuracy for label, accuracy in accuracies.items()}
    values["worst class"] = min(accuracies.values())
    if of_workers:
        values["worst worker"] = min(of_workers.values())
    if len(of_workers) <= MOST_WORKERS:
        values |= {f"worker {worker}": accuracy for worker, accuracy in of_workers.items()}
    return values


METRICS["classes"] = classes
