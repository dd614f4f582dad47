"""Flipped bits, as from faulty hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynabro_cli.components.attacks._api import REGISTRY, Attack, AttackSetting, State, replace
from dynabro_cli.components.attacks._noise import noise_key, uniform_noise
from dynabro_cli.core.lazy import Late, torch
from dynabro_cli.core.registration import parameter
from dynabro_cli.core.streams import Streams

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameters:
    rate: float = parameter(
        0.001, above=0, maximum=1, help="probability that a number of a message has a flipped bit"
    )
    bits: str = parameter(
        "any",
        choices=("any", "sign", "exponent", "mantissa"),
        help="positions of the flipped bits in a number",
    )


@REGISTRY.register(
    "bit-flip",
    Parameters,
    reference="motive: Altenbernd, Wiesner & Kao, CCGrid 2026, arXiv 2604.00726; the definition is "
    "dynabro's own",
)
def bit_flip(parameters: Parameters, setting: AttackSetting) -> Attack:
    """Bit flip: silent data corruption, random bits of a worker's own vector are inverted.

    Each of the d numbers of g_i is hit with probability ``rate``, independently. In a number that
    is hit, one bit is inverted. Its position is uniform among all bits (any), the sign bit, the
    bits of the exponent, or the bits of the mantissa. A worker without a hit is honest. Draws
    depend only on the seed and on the count of past rounds, as in ``gaussian``.

    A number is in the messages' type: 1, 8 and 23 bits for sign, exponent and mantissa in single
    precision; 1, 11 and 52 in double precision, in which objective tasks such as ``quadratic``
    compute. Flips in the exponent can give numbers near the largest, infinities and NaN; rules
    treat a worker that sends an infinity or a NaN as Byzantine. Flips of sign or mantissa are
    finite.

    With attack_entry=gradient (the default) the computation is corrupted, and a worker's momentum
    remembers it: a NaN stays for ever. With attack_entry=message only the transmission is. With
    switching ``bernoulli`` it is hardware whose faults come and go.

    The state is ``tick``, the count. All MLMC levels of a round get the same flips.

    Differs from the paper: it injects faults into matrix multiplications inside a GPU, from where
    they spread through a layer. Here bits of the finished vector are flipped. Its abstract reports
    that positions matter, that NaN propagates, and that losses have short spikes. Its rates were
    not available, so the defaults are dynabro's own. Older codes call the negative gradient "bit
    flipping"; that is ``sf`` here.
    """
    hits, places = noise_key(setting.seed), Streams(setting.seed).integer("attack", 1)

    def messages(vectors: Tensor, byzantine: Tensor, state: State) -> Tensor:
        hit = uniform_noise(hits, state["tick"], vectors) < parameters.rate  # [m, d]
        first, count, integer = layout(vectors.dtype, parameters.bits)
        position = first + (uniform_noise(places, state["tick"], vectors) * count).to(integer)
        flipped = vectors.view(integer) ^ (torch.ones_like(position) << position)
        return replace(vectors, byzantine, torch.where(hit, flipped.view(vectors.dtype), vectors))

    def advance(byzantine: Tensor, state: State) -> State:
        return {"tick": state["tick"].to(byzantine.device) + 1}

    return Attack(
        Late(lambda: {"tick": torch.zeros((), dtype=torch.int64)}),
        messages,
        advance,
        finite=parameters.bits in ("sign", "mantissa"),
    )


def layout(dtype: torch.dtype, bits: str) -> tuple[int, int, torch.dtype]:
    """Return the lowest position of some bits of a number, their number, and the integer type of
    its size.
    """
    size, mantissa = torch.finfo(dtype).bits, round(-math.log2(torch.finfo(dtype).eps))
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[size]
    first, count = {
        "any": (0, size),
        "sign": (size - 1, 1),
        "exponent": (mantissa, size - 1 - mantissa),
        "mantissa": (0, mantissa),
    }[bits]
    return first, count, integer
