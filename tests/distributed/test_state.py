"""Each rule and pre-aggregator over several processes equals the rule on one matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
import torch.distributed as dist

from dynabro_cli.components.api import make_aggregator
from dynabro_cli.components.registries import REGISTRIES
from dynabro_cli.core.errors import SpecError
from dynabro_cli.distributed import RobustState
from tests.distributed.worlds import World, first

NEEDED = {
    "mfm": "mfm:threshold=30",
    "centered-clipping": "centered-clipping:tau=3,L=2",
    "clipping": "clipping:c=5",
}
RULES = [NEEDED.get(name, name) for name in REGISTRIES["aggregators"].entries()]
STAGES = [NEEDED.get(name, name) for name in REGISTRIES["pre_aggregators"].entries()]
TEXTS = [
    *RULES,
    *(f"{stage}+{rule}" for stage in STAGES for rule in ("cwtm", "gm", "cge")),
    "nnm+krum",
    "nnm+nnm+meamed",
    "bucketing+nnm+cwtm",
    "bucketing:s=1+bucketing:s=1+caf",
    "gm:T=3",
    "foundation:copies=0",
]
SIZES = (1, 2, 5, 1000, 4099)
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
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[torch.dtype] = TYPES,
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
    for byzantine in range((ranks + 1) // 2):
        assert world_of_eight.run(differences, ranks, TEXTS, byzantine) == [[]] * 8


def modes(texts: Iterable[str]) -> dict[str, str]:
    return {text: RobustState(text, byzantine=0).mode for text in texts}


def test_only_declared_rules_are_aggregated_in_parts(world: World) -> None:
    every = world.run(modes, TEXTS)[0]
    by_mode = {mode: {text for text in TEXTS if every[text] == mode} for mode in every.values()}
    single = set(RULES)
    assert by_mode["coordinates"] & single == {
        *("cwmed", "cwtm", "mean", "meamed", "phocas", "sign-majority")
    }
    assert by_mode["gram"] & single == {"caf", "gm", "krum", "mda", "multi-krum", "smea"}
    assert "bucketing+cwtm" in by_mode["coordinates"]
    assert {"nnm+cwtm", "bucketing+nnm+cwtm", "nnm+nnm+meamed"} <= by_mode["gram"]
    assert {"arc+cwtm", "nnm+cge", "gm:T=3"} <= by_mode["gathered"]
