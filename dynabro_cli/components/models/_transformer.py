"""Blocks of a decoder-only transformer, as modules: this file imports torch, so that ``gpt`` does
not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): pre-norm, causal attention, four times as wide
    inside, GELU.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = (
            self.queries_keys_values(self.before_attention(x))
            .view(n, length, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        queries, keys, values = parts.unbind(0)  # [n, heads, length, width/heads]
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).reshape(n, length, width))
        added: Tensor = self.narrow(F.gelu(self.widen(self.before_mlp(x))))
        return x + added


class Decoder(nn.Module):
    """Decoder of windows of characters [n, 1, 1, length], of any number type, to features of the
    last position [n, width].
    """

    def __init__(self, characters: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, windows: Tensor) -> Tensor:
        numbers = windows.flatten(1).long()  # [n, length]
        places = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
        x = (self.characters(numbers) + self.places(places)).to(windows.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x[:, -1])  # type: ignore[no-any-return]
