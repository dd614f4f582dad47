"""PyTorch, imported at its first use.

``from dynabro_cli.lazy import torch`` at the head of a module replaces ``import torch``, which
takes seconds; ``nn`` works in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynabro_cli.deferred import Late as Late
from dynabro_cli.deferred import deferred

if TYPE_CHECKING:
    import torch as torch
    from torch import nn as nn
else:
    torch, nn = deferred("torch"), deferred("torch.nn")
