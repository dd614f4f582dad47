"""Copy of a model whose layers keep the workers' gradients separate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from dynabro_cli.gradients.layers.conv_block import ConvBlock
from dynabro_cli.gradients.layers.worker_layers import (
    Shared,
    WorkerConv2d,
    WorkerDropout,
    WorkerLinear,
)
from dynabro_cli.gradients.layers.worker_norms import WorkerBatchNorm2d, WorkerGroupNorm
from dynabro_cli.gradients.layers.worker_tokens import WorkerEmbedding, WorkerLayerNorm


class UnsupportedError(Exception):
    """The model has a module for which no stand-in exists."""


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_STAND_INS: dict[type[nn.Module], Callable[[str, Any, Shared], nn.Module]] = {
    nn.Linear: WorkerLinear,
    nn.Conv2d: WorkerConv2d,
    nn.BatchNorm2d: WorkerBatchNorm2d,
    nn.GroupNorm: WorkerGroupNorm,
    nn.Dropout: WorkerDropout,
    nn.Embedding: WorkerEmbedding,
    nn.LayerNorm: WorkerLayerNorm,
}


def twin(model: nn.Module, shared: Shared) -> nn.Module:
    """Copy ``model`` with every layer that has parameters or randomness replaced; parameters stay
    shared.

    A layer whose parameters are all frozen needs no stand-in, because only the gradients of
    parameters are separate.

    Raises:
        UnsupportedError: A module without a stand-in has trainable parameters, buffers or
            randomness, or mixes samples; a module has hooks; a layer is frozen in part; or two
            modules share a parameter.
    """
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS):
            raise UnsupportedError(f"{name or 'the model'} ({type(module).__name__}) has a hook")
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    try:
        copied = copy.deepcopy(model, cast(dict[int, Any], memo))
    except Exception as error:  # a model may hold anything
        raise UnsupportedError(
            f"the model cannot be copied ({type(error).__name__}: {error})".partition("\n")[0]
        ) from error
    if len(list(copied.named_parameters(remove_duplicate=False))) != len(list(copied.parameters())):
        raise UnsupportedError("two layers share a parameter")
    for name, module in list(copied.named_modules()):
        stand_in = _STAND_INS.get(type(module))
        trained = {parameter.requires_grad for parameter in module.parameters(recurse=False)}
        if len(trained) == 2:
            raise UnsupportedError(
                f"{name or 'the model'} ({type(module).__name__}) is frozen in part"
            )
        if trained == {False} and not any(True for _ in module.buffers(recurse=False)):
            continue
        if isinstance(module, nn.Conv2d) and (
            module.padding_mode != "zeros" or isinstance(module.padding, str)
        ):
            raise UnsupportedError(
                f"{name} (Conv2d) has padding {module.padding!r} of mode {module.padding_mode!r}"
            )
        if isinstance(module, nn.Embedding) and (
            module.max_norm is not None
            or module.padding_idx is not None
            or module.scale_grad_by_freq
            or module.sparse
        ):
            raise UnsupportedError(f"{name} (Embedding) has options")
        if stand_in is None:
            direct = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if direct or is_random(module) or isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise UnsupportedError(
                    f"{name or 'the model'} ({type(module).__name__}) has no stand-in"
                )
        elif name:
            copied.set_submodule(name, stand_in(name, module, shared))
        else:
            copied = stand_in(name, module, shared)
    for module in copied.modules():
        if isinstance(module, nn.Sequential):
            _fuse(module)
    return copied


def _fuse(layers: nn.Sequential) -> None:
    """Put convolution, ReLU and 2 x 2 max-pooling into one layer; move ReLU after any other
    pooling, where it has less to do.

    The largest of several values is positive if one of them is, so output and gradients do not
    change.
    """
    for i in range(len(layers) - 1):
        if i and ConvBlock.serves(layers[i - 1], layers[i], layers[i + 1]):
            block = ConvBlock(cast(WorkerConv2d, layers[i - 1]), layers[i], layers[i + 1])
            layers[i - 1], layers[i], layers[i + 1] = block, nn.Identity(), nn.Identity()
        elif type(layers[i]) is nn.ReLU and type(layers[i + 1]) is nn.MaxPool2d:
            layers[i], layers[i + 1] = layers[i + 1], layers[i]


def join(model: nn.Module, *, biases: bool = False) -> None:
    """Join every ReLU of a twin with the batch norm after it, and if ``biases`` the bias of the
    convolution before both.
    """
    for layers in model.modules():
        if isinstance(layers, nn.Sequential):
            for i in range(1, len(layers)):
                norm, before = layers[i], i - 1
                if not isinstance(norm, WorkerBatchNorm2d):
                    continue
                if type(layers[before]) is nn.ReLU:
                    layers[before], norm.relu, before = nn.Identity(), True, before - 1
                conv = layers[before] if before >= 0 else None
                if biases and isinstance(conv, WorkerConv2d) and conv.has_bias:
                    norm.after, conv.followed_by = (conv,), (norm,)


def is_random(module: nn.Module) -> bool:
    """Return True if the module draws random numbers in training."""
    drops = "dropout" in type(module).__name__.lower() and getattr(module, "p", 1) > 0
    return drops or isinstance(module, nn.RReLU)


def without_dropout(model: nn.Module) -> None:
    """Switch dropout layers off: the ways of computing gradients draw masks differently."""
    for module in model.modules():
        if is_random(module) and hasattr(module, "p"):
            cast(nn.Dropout, module).p = 0.0
