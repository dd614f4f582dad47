"""Each of our aggregation rules beside its counterparts in ByzFL and ByzPy, on one [m, d] matrix in
memory.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.measuring import chosen, in_turn, machine, ratio, table
from benchmarks.peers import Rule
from dynabro_cli.components.aggregators._api import SERVER, AggregatorSetting
from dynabro_cli.components.aggregators.gm import start_of, weiszfeld
from dynabro_cli.components.pre_aggregators._chain import build_chain
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.core.vectors.gram import around, gram
from dynabro_cli.gradients.memory import keep_pages
from dynabro_cli.simulation.compilation import Compiler, missing_tool

ROUNDING = 1e-6
"""Smallest distance from the minimiser that can be expected of a rule in single precision."""

MOST_STEPS = 400
HEADER = [
    *("rule", "f", "ours, ms", "compiled, ms", "ByzFL, ms", "ratio", "ByzPy, ms", "ratio"),
    *("ByzFL differs", "ByzPy differs", "floor, ms", "ours / floor", "compiled / floor"),
]


@dataclass(frozen=True)
class Bench:
    """The matrix that rules are measured on, the number of repeats, and the peers."""

    matrix: Tensor
    f: int
    repeats: int
    byzfl: bool = True
    byzpy: bool = True
    compiled: bool = True

    @property
    def compiler(self) -> Compiler | None:
        """Return the compiler of our rules; None if it is not requested, or compiling is
        impossible.
        """
        possible = self.compiled and self.matrix.device.type == "cpu" and not missing_tool()
        return Compiler("on", work=math.inf, device=self.matrix.device) if possible else None


def messages(m: int, d: int, f: int, device: str, seed: int = 0) -> Tensor:
    """Make vectors [m, d] like workers' messages, the last f negated: a few important directions,
    and noise.

    Distances between them differ widely, so that rounding does not decide a rule's choice.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(m, 8, generator=generator) @ torch.randn(8, d, generator=generator)
    vectors = 0.5 + directions + torch.randn(m, d, generator=generator)
    vectors[m - f :] *= -1
    return vectors.to(device)


def measure(
    m: int,
    d: int,
    f: int,
    repeats: int,
    device: str,
    *,
    rules: Sequence[str] = (),
    byzfl: bool = True,
    compiled: bool = True,
) -> str:
    """Measure every rule, alone and after nnm, and nnm itself, or the given ``rules``; return a
    table.
    """
    keep_pages()
    bench = Bench(messages(m, d, f, device), f, repeats, byzfl, peers.has_byzpy(), compiled)
    names = chosen(rules, all_rules(), "rule")
    rows = list(itertools.chain.from_iterable(rows_of(name, bench) for name in names))
    return (
        f"m = {m}, d = {d:,}, float32; on one thread of a CPU, the least CPU time of {repeats} "
        "turns, otherwise the median time; the ratios are theirs over ours, eager; differs: "
        "largest difference over largest value, "
        "for gm its distance from the minimiser, over the mean distance of the messages\n"
        f"{machine(device)}\n\n{table(HEADER, rows)}"
    )


def all_rules() -> list[str]:
    """Return every pre-aggregator, then every rule alone and after ``nnm``."""
    rules = REGISTRIES["aggregators"].entries()
    return [
        *REGISTRIES["pre_aggregators"].entries(),
        *(f"{chain}{rule}" for rule in rules for chain in ("", "nnm+")),
    ]


def rows_of(name: str, bench: Bench) -> Iterator[list[object]]:
    """Return the row of one rule, and for the geometric median also the row of ByzFL's rule at our
    accuracy.
    """
    *chain, rule = name.split("+")
    m = len(bench.matrix)
    most = {
        "krum": (m - 3) // 2,
        "multi-krum": (m - 3) // 2,
        "bulyan": (m - 3) // 4,
        "bucketing": ((m + 1) // 2 - 1) // 2,
    }
    f = min(bench.f, most.get(rule, bench.f))
    try:
        ours = _our_rule(rule, chain, f, bench.matrix)
    except SpecError as error:
        yield [name, f, *["-"] * (len(HEADER) - 3), str(error).splitlines()[0]]
        return
    mixed = bool(chain)
    byzfl = peers.byzfl_rule(rule, f, mixed=mixed) if bench.byzfl else None
    byzpy = peers.byzpy_rule(rule, f, mixed=mixed) if bench.byzpy else None
    if rule != "gm":
        yield _row(name, f, bench, ours, byzfl, byzpy, _difference)
        return
    error = _error_of(
        _our_rule(chain[0], [], f, bench.matrix)(bench.matrix) if chain else bench.matrix
    )

    def compare(_: Tensor, theirs: Tensor) -> float:
        return error(theirs)

    mine = error(ours(bench.matrix))
    yield _row(name, f, bench, ours, byzfl, byzpy, compare)
    if bench.byzfl:
        accurate = _accurate(bench.matrix, error, max(mine, ROUNDING), f, mixed=mixed)
        if accurate is None:
            yield [
                f"{name}, ByzFL at our accuracy",
                f,
                *["-"] * (len(HEADER) - 3),
                f"not within {MOST_STEPS} steps",
            ]
        else:
            title, their_rule = accurate
            yield _row(
                f"{name}, ByzFL with {title}, as near as ours ({max(mine, ROUNDING):.0e})",
                f,
                bench,
                ours,
                their_rule,
                None,
                compare,
            )


def _our_rule(rule: str, chain: list[str], f: int, matrix: Tensor) -> Rule:
    """Return our rule or pre-aggregator as a function of the matrix, with the peers' parameters if
    they differ.
    """
    setting = AggregatorSetting(len(matrix), f)
    registry = REGISTRIES["pre_aggregators"]
    if rule in registry.entries():
        mix: Rule = (
            registry.parse({"clipping": f"clipping:c={peers.C}"}.get(rule, rule)).build(setting).mix
        )
        return mix
    spread = float((matrix - matrix.mean(0)).norm(dim=1).median())
    texts = {
        "krum": "krum:neighbours=m-f-1",
        "multi-krum": "multi-krum:neighbours=m-f-1",
        "mfm": f"mfm:threshold={4 * spread:.6g}",
        "centered-clipping": f"centered-clipping:tau={peers.TAU}",
    }
    component = REGISTRIES["aggregators"].parse(texts.get(rule, rule))
    aggregator = build_chain(component, [registry.parse(part) for part in chain], setting)
    given = {SERVER: matrix.mean(0)} if aggregator.needs_server else {}
    return lambda messages: aggregator.aggregate(messages, given, 1)[0]


def _row(
    title: str,
    f: int,
    bench: Bench,
    ours: Rule,
    byzfl: Rule | None,
    byzpy: Rule | None,
    compare: Callable[[Tensor, Tensor], float],
) -> list[object]:
    """Time one rule on all sides, in turn with a copy of the matrix, which measures the memory's
    bandwidth.
    """
    matrix, compiler = bench.matrix, bench.compiler
    rules = {
        "ours": ours,
        "ByzFL": byzfl,
        "ByzPy": byzpy,
        "compiled": compiler(ours) if compiler else None,
    }
    results: dict[str, Tensor | str] = {
        name: _try(rule, matrix) for name, rule in rules.items() if rule is not None
    }
    calls: dict[str, Callable[[], object]] = {
        name: functools.partial(rule, matrix)
        for name, rule in rules.items()
        if rule is not None and isinstance(results[name], Tensor)
    }
    target = torch.empty_like(matrix)
    alone = matrix.device.type == "cpu" and torch.get_num_threads() == 1
    calls |= {"copy": lambda: target.copy_(matrix)}
    times = in_turn(calls, bench.repeats, matrix.device, least=alone)
    mine = results["ours"]
    numbers = mine.numel() if isinstance(mine, Tensor) else 0
    floor = times["copy"] * (matrix.numel() + numbers) / (2 * matrix.numel())
    differs = []
    for name in ("ByzFL", "ByzPy"):
        theirs = results.get(name)
        differs.append(
            compare(mine, theirs)
            if isinstance(theirs, Tensor) and isinstance(mine, Tensor)
            else theirs
        )
    return [
        *(title, f, *(_milliseconds(times.get(name)) for name in ("ours", "compiled"))),
        *(_milliseconds(times.get("ByzFL")), ratio(times.get("ByzFL"), times["ours"])),
        *(
            _milliseconds(times.get("ByzPy")) if bench.byzpy else "not installed",
            ratio(times.get("ByzPy"), times["ours"]),
        ),
        *(*differs, 1000 * floor, times["ours"] / floor, ratio(times.get("compiled"), floor)),
    ]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _try(rule: Rule, matrix: Tensor) -> Tensor | str:
    """Return the result of a rule, or the name of its exception: some rules are not defined for
    large matrices.
    """
    try:
        result: Tensor | list[Tensor] = rule(matrix)
    except Exception as error:
        return type(error).__name__
    return torch.stack(result) if isinstance(result, list) else result


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of two results, relative to the largest value."""
    return float((ours - theirs).abs().max() / ours.abs().max())


def _error_of(points: Tensor) -> Callable[[Tensor], float]:
    """Return a function for a vector's distance from the geometric median of ``points``, over their
    mean distance from it.

    The median is found in double precision, with steps until another step is no longer than
    rounding.
    """
    exact = points.double()
    products = gram(exact)
    median = weiszfeld(around(products, start_of(products)), 1e-12, 1e-14, 100_000) @ exact
    spread = (exact - median).norm(dim=1).mean()
    return lambda vector: float((vector.double() - median).norm() / spread)


def _accurate(
    matrix: Tensor, error: Callable[[Tensor], float], ours: float, f: int, *, mixed: bool
) -> tuple[str, Rule] | None:
    """Return ByzFL's geometric median with the fewest steps that come as near to the minimiser as
    ours, and its parameters.

    nu is divided by ten, from its default, if more steps no longer help.
    """
    steps, nu, last = 1, 0.1, math.inf
    while steps <= MOST_STEPS and nu > 1e-12:
        rule = peers.byzfl_geometric_median(steps, nu, f, mixed=mixed)
        reached = error(rule(matrix))
        if reached <= ours:
            return f"T={steps}, nu={nu:g}", rule
        if steps > 3 and last - reached < 1e-3 * ours:
            nu, last = nu / 10, math.inf
            continue
        steps, last = steps + 1, reached
    return None
