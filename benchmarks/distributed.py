"""Gradients of DistributedDataParallel: all-reduce, a robust rule on gathered messages, and the
hook of ``dynabro_cli.distributed``, in turn, with gloo on this machine.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measuring import machine, ratio, table
from dynabro_cli.components.api import BoundAggregator, make_aggregator
from dynabro_cli.distributed import RobustState, robust_hook

WIDTHS = {0.13: 256, 2.1: 1024, 8.0: 2000}
"""Millions of parameters, and the width of two layers that have as many."""
SIDES = ("all-reduce", "gathered", "sharded")


def measure(ranks: Sequence[int], millions: Sequence[float], rule: str, repeats: int) -> str:
    """Return a table of milliseconds of a backward pass, the least of ``repeats``, and ratios."""
    rows: list[list[object]] = []
    for m in ranks:
        with tempfile.TemporaryDirectory() as folder:
            answers = mp.get_context("spawn").SimpleQueue()
            arguments = (m, f"{folder}/store", list(millions), rule, repeats, answers)
            mp.spawn(_rank, arguments, nprocs=m)
            for size, seconds in answers.get():
                least = [min(seconds[side]) for side in SIDES]
                rows.append(
                    [
                        f"{m} ranks, {size:g} M",
                        *(1000 * value for value in least),
                        *(ratio(value, least[0]) for value in least[1:]),
                    ]
                )
    header = ["ms", *SIDES, "gathered / all-reduce", "sharded / all-reduce"]
    return f"{machine(threads=1)}\n\n{rule}\n\n{table(header, rows)}"


def _rank(
    rank: int, m: int, store: str, millions: list[float], rule: str, repeats: int, answers: Any
) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=m)
    results = []
    for size in millions:
        models = {side: _model(side, WIDTHS[size], m, rule) for side in SIDES}
        inputs = torch.randn(8, WIDTHS[size])
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(repeats + 3):  # the first ones build buckets and kernels
            for side, model in models.items():
                model.zero_grad()
                loss = model(inputs).square().mean()
                dist.barrier()
                before = time.perf_counter()
                loss.backward()
                if turn >= 3:
                    seconds[side].append(time.perf_counter() - before)
        results.append((size, seconds))
        dist.barrier()
    if rank == 0:
        answers.put(results)
    dist.destroy_process_group()


def _model(side: str, width: int, m: int, rule: str) -> DistributedDataParallel:
    layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    model = DistributedDataParallel(layers)
    byzantine = (m - 1) // 2
    if side == "gathered":
        model.register_comm_hook(make_aggregator(rule, workers=m, byzantine=byzantine), _gathered)
    elif side == "sharded":
        model.register_comm_hook(RobustState(rule, byzantine=byzantine), robust_hook)
    return model


# DistributedDataParallel compares these annotations with types, so they are not texts
def _gathered(aggregator: BoundAggregator, bucket: dist.GradBucket) -> Future[Tensor]:
    vector: Tensor = bucket.buffer()
    messages = vector.new_empty(dist.get_world_size(), len(vector))
    dist.all_gather(list(messages), vector)
    done: Future[Tensor] = Future()
    done.set_result(aggregator(messages))
    return done
