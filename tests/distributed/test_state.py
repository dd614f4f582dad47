"""Each rule and pre-aggregator over several processes equals the rule on one matrix."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.distributed import RobustState
from tests.distributed.worlds import World, first, world_of

NEEDED = {
    "mfm": "mfm:threshold=30",
    "centered-clipping": "centered-clipping:tau=3,L=2",
    "clipping": "clipping:c=5",
}
RULES = [NEEDED.get(name, name) for name in REGISTRIES["aggregators"].entries()]
STAGES = [NEEDED.get(name, name) for name in REGISTRIES["pre_aggregators"].entries()]
# without nnm twice: its mixed messages tie in exact arithmetic, and rounding decides
TEXTS = [
    *RULES,
    *(f"{stage}+{rule}" for stage in STAGES for rule in ("cwtm", "gm", "cge")),
    "nnm+krum",
    "bucketing+nnm+cwtm",
    "bucketing:s=1+bucketing:s=1+caf",
    "gm:T=3",
    "foundation:copies=0",
]
SIZES = (1, 5, 16, 301)
TYPES = (torch.float32, torch.bfloat16, torch.float64)


def drawn(call: int, m: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    """Messages [m, d] of one call; the last one is Byzantine."""
    generator = torch.Generator().manual_seed(1000 * call + d)
    messages = torch.randn(m, d, generator=generator, dtype=torch.float64) + 0.5
    messages[m - 1] *= -20
    return messages.to(dtype)


def differences(
    ranks: int,
    texts: Iterable[str],
    byzantine: int,
    sizes: Sequence[int],
    dtypes: Sequence[torch.dtype],
) -> list[str]:
    """Compare a rule of the first ranks with the same rule on the whole matrix, over three calls.
    The second call has a NaN.
    """
    group, rank, wrong = first(ranks), dist.get_rank(), []
    if rank >= ranks:
        return []
    for text in texts:
        try:
            expected = make_aggregator(text, workers=ranks, byzantine=byzantine, seed=3)
        except SpecError:
            continue
        for dtype in dtypes:
            for d in sizes:
                state = RobustState(text, byzantine=byzantine, seed=3, process_group=group)
                whole = make_aggregator(text, workers=ranks, byzantine=byzantine, seed=3)
                for call in range(3):
                    messages = drawn(call, ranks, d, dtype)
                    if call == 1:
                        messages[0, d // 2] = torch.nan
                    server = messages[1].clone() if "fltrust" in text else None
                    vector = messages[rank].clone()
                    result = state.aggregate(vector, 1, server)
                    expected = whole(messages, server=server)
                    row = f"{text} m={ranks} {dtype} d={d} call={call} {state.mode}"
                    if not torch.equal(vector.nan_to_num(), messages[rank].nan_to_num()):
                        wrong.append(f"{row}: the argument changed")
                    if state.mode != "gram" and not torch.equal(result, expected):
                        wrong.append(f"{row}: not equal")
                    apart = (result - expected).double().norm() / expected.double().norm()
                    if apart > (1e-6 if dtype != torch.bfloat16 else 4e-3):
                        wrong.append(f"{row}: {apart:.1e}")
    return wrong


def test_every_rule_equals_the_rule_on_one_machine(world: World) -> None:
    for ranks, dtype in ((3, torch.bfloat16), (4, torch.float32)):
        assert world.run(differences, ranks, TEXTS, 1, (2, 1001), (dtype,)) == [[]] * 4


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", range(2, 9))
def test_every_rule_with_two_to_eight_ranks(world_of_eight: World, ranks: int) -> None:
    most = (ranks - 1) // 2
    for byzantine, sizes, dtypes in (
        (most, SIZES, TYPES[:1]),
        (most, SIZES[3:], TYPES[1:]),
        (min(1, most), SIZES[1:2], TYPES[:1]),
    ):
        assert world_of_eight.run(differences, ranks, TEXTS, byzantine, sizes, dtypes) == [[]] * 8


def modes(texts: Iterable[str]) -> dict[str, str]:
    return {text: RobustState(text, byzantine=0).mode for text in texts}


def test_only_declared_rules_are_aggregated_in_parts(world: World) -> None:
    every = world.run(modes, [*TEXTS, "nnm+nnm+meamed"])[0]
    by_mode = {mode: {text for text in every if every[text] == mode} for mode in every.values()}
    single = set(RULES)
    assert by_mode["coordinates"] & single == {
        *("cwmed", "cwtm", "mean", "meamed", "phocas", "sign-majority")
    }
    assert by_mode["gram"] & single == {"caf", "gm", "krum", "mda", "multi-krum", "smea"}
    assert "bucketing+cwtm" in by_mode["coordinates"]
    assert {"nnm+cwtm", "bucketing+nnm+cwtm", "nnm+nnm+meamed"} <= by_mode["gram"]
    assert {"arc+cwtm", "nnm+cge", "gm:T=3"} <= by_mode["gathered"]


def too_few() -> list[str]:
    problems = []
    for text, byzantine in (("cwtm", 2), ("mean", 2), ("krum", 1), ("cwtm", -1), ("cwtm:f=2", 0)):
        with pytest.raises(SpecError) as error:
            RobustState(text, byzantine=byzantine, process_group=first(4))
        problems += error.value.problems
    return problems


def test_too_few_ranks_are_an_error_at_the_start(world: World) -> None:
    for lines in world.run(too_few):
        assert lines[0] == lines[1]
        assert lines[0].startswith("byzantine=2: ")
        assert "5 ranks" in lines[0]
        assert "f=1" in lines[2]
        assert lines[3].startswith("byzantine=-1: ")
        assert "f=2" in lines[4]
        assert all("Try: " in line for line in lines)


def test_without_a_process_group() -> None:
    with pytest.raises(SpecError, match=r"process_group=None: .* Try: .*init_process_group"):
        RobustState("cwtm", byzantine=1)


def not_finite(text: str) -> list[bool]:
    state, rank = RobustState(text, byzantine=1), dist.get_rank()
    every = state.aggregate(torch.full((9,), torch.inf))
    vector = torch.arange(9.0) + rank
    if rank == 1:
        vector[8] = -torch.inf
    later = state.aggregate(vector)
    return [bool(every.isfinite().any()), bool(later.isfinite().all())]


def test_messages_that_are_not_finite(world: World) -> None:
    for text in ("cwtm", "nnm+gm", "nnm+cwtm", "rfa", "bucketing:s=1+cwmed"):
        assert world.run(not_finite, text) == [[False, True]] * 4


def resumed(text: str, saved: bytes | None) -> tuple[bytes, Tensor, list[float]]:
    """Make calls 0 to 2, or only call 2 with a saved state, as another rank."""
    state, rank = RobustState(text, byzantine=1), dist.get_rank()
    if saved is not None:
        state.load_state_dict(torch.load(io.BytesIO(saved), weights_only=True))
    for call in range(0 if saved is None else 2, 3):
        if call == 2:
            file = io.BytesIO()
            torch.save(state.state_dict(), file)
        result = state.aggregate(drawn(call, 4, 1001, torch.float32)[rank])
    return file.getvalue(), result, state.suspects()


def test_a_state_goes_on_where_it_was_saved(world: World) -> None:
    for text in ("centered-clipping:tau=1", "bucketing:s=1+nnm+gm", "dnc:b=10", "cwtm", "gm"):
        through = world.run(resumed, text, None)
        later = world.run(resumed, text, through[2][0])
        for rank in range(4):
            assert torch.equal(later[rank][1], through[0][1])
            assert later[rank][2] == through[0][2]


def refused_states() -> list[str]:
    problems = []
    saved = RobustState("cwtm", byzantine=1).state_dict()
    for text, options in (
        ("cwmed", {"byzantine": 1}),
        ("cwtm", {"byzantine": 0}),
        ("cwtm", {"byzantine": 1, "seed": 1}),
    ):
        with pytest.raises(SpecError) as error:
            RobustState(text, **options).load_state_dict(saved)
        problems += error.value.problems
    state = RobustState("centered-clipping:tau=1", byzantine=1)
    state.aggregate(torch.ones(3))
    with pytest.raises(ValueError, match="remembers a vector of 3"):
        state.aggregate(torch.ones(4))
    for vector in (torch.ones(2, 2), torch.ones(3, dtype=torch.int64)):
        with pytest.raises(SpecError) as error:
            state.aggregate(vector)
        problems += error.value.problems
    return [line.partition("=")[0] for line in problems if "Try: " in line]


def test_states_and_vectors_that_do_not_fit(world: World) -> None:
    names = ["rule", "byzantine", "seed", "vector", "vector"]
    assert world.run(refused_states) == [names] * 4


def watched(text: str, d: int, calls: int) -> list[list[float]]:
    """Rank 2 sends outliers in every coordinate of three in four calls."""
    state, rank, answers = RobustState(text, byzantine=1), dist.get_rank(), []
    for call in range(calls):
        generator = torch.Generator().manual_seed(call)
        messages = torch.randn(4, d, generator=generator)
        messages[2] += 50.0 * (call % 4 > 0)
        state.aggregate(messages[rank])
    answers.append(state.suspects(reset=True))
    state.aggregate(torch.randn(4, d, generator=torch.Generator().manual_seed(99))[rank])
    return [*answers, state.suspects()]


def test_who_misbehaves(world: World) -> None:
    """Of an honest rank, cwtm cuts off 2f/m = 1/2 if all are honest, and f/(m - f) = 1/3 if another
    rank has the largest value everywhere.
    """
    rows = {
        "cwtm": ([0.375] * 2 + [0.875] + [0.375] * 1, 0.5),
        "meamed": ([0.0625] * 2 + [0.8125] + [0.0625], 0.25),
        "nnm+gm": (None, None),
        "krum:f=0": (None, None),
        "cge": ([0.0625] * 2 + [0.8125] + [0.0625], None),
    }
    for text, (wanted, honest) in rows.items():
        answers = world.run(watched, text, 4000, 8)
        assert answers == [answers[0]] * 4
        shares, later = answers[0]
        assert max(shares) == shares[2]
        if wanted is not None:
            assert shares == pytest.approx(wanted, abs=0.26 if text == "cge" else 0.05)
        if honest is not None:
            assert later == pytest.approx([honest] * 4, abs=0.1)


def silent(kind: str) -> str:
    """Rank 1 ends in the middle of a call; the others return their error."""
    state, rank = RobustState(kind, byzantine=1), dist.get_rank()
    state.aggregate(torch.ones(1000))
    if rank == 1:
        os._exit(3)
    error = "none"
    try:
        for _ in range(3):
            state.aggregate(torch.ones(1000))
    except RuntimeError as raised:
        error = str(raised)
    return error


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["cwtm", "nnm+gm", "cge"])
def test_a_rank_that_ends_is_an_error_of_the_others(text: str) -> None:
    with world_of(3, timeout=10) as world:
        for end in world.ends:
            end.send((silent, (text,)))
        for rank in (0, 2):
            assert world.ends[rank].poll(60), "no answer"
            (error,) = world.ends[rank].recv()
            assert "gloo" in error
