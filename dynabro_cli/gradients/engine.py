"""Per-worker gradients of a network as one [m, d] matrix.

Callers need only ``WorkerGradients``. Models made of the layers in ``worker_layers`` need one pass
over all workers' samples. Other models are mapped over the workers by ``vmap(grad)``. Models that
cannot be mapped need a loop over workers and mini-batches. ``agreement`` finds out which of these
ways give a model's own gradients.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynabro_cli.gradients.agreement import choose
from dynabro_cli.gradients.chain import Chain, chain_of
from dynabro_cli.gradients.fusible import accurate
from dynabro_cli.gradients.generators import generators_kept, seed_generators
from dynabro_cli.gradients.kernels import conv_weights, linear, norm
from dynabro_cli.gradients.kernels.conv_block import compile_blocks, without_block
from dynabro_cli.gradients.memory import free_memory
from dynabro_cli.gradients.twin import UnsupportedError, is_random, twin
from dynabro_cli.gradients.worker_layers import Shared
from dynabro_cli.machine.gpu_kernels import triton_works

SHARED, MAPPED, LOOP = "shared pass", "vmap(grad)", "loop over workers"
KINDS = (SHARED, MAPPED, LOOP)
SINGLE = (torch.float32, torch.bfloat16)
"""Types of activations from which Triton's kernels compute in single precision."""
PASS_VALUES = 600_000
"""Input values of one pass: all workers of an MNIST iteration, or three workers of a CIFAR-10
iteration. The limit bounds the memory of activations and costs no time on a CPU.
"""
PASS_SHARE = 0.25
"""The share of a machine's free memory that the activations of one pass may take."""
GPU_PASS_VALUES, GPU_PASS_BYTES = 1 << 23, 5e9
"""Input values of one pass on a GPU, and the bytes of its activations: a CIFAR-10 iteration in
single precision is one pass. The limits are the same for every GPU and number of runs at a time,
because passes change sums by rounding. A backward pass takes 2.5 times the memory of the
activations.
"""


MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
TRANSFORMS = ("vmap", "Batching rule", "grad (vjp, jvp, grad, etc)")
"""Texts in errors of ``torch.func`` about a function that it cannot transform."""

Seeds = Sequence[int] | Tensor
Loss = Callable[[Tensor, Tensor], Tensor]


class WorkerGradients:
    """The gradients of all or some workers at one model.

    The model's trainable parameters become views of ``parameters`` [d], and its floating-point
    buffers views of ``buffers`` [s] (running statistics), so that the server updates the model by
    writing to these two. Parameters with ``requires_grad=False`` are not in d, and stay as they
    are.

    Args:
        model: The network; its own ``forward`` takes [n, c, h, w] and returns logits [n, classes],
            or what ``loss`` takes.
        workers: The number m of workers.
        dtype: The type of numbers in forward and backward passes, by default the parameters' type.
            Gradients have the parameters' type.
        kinds: The ways to try, in this order.
        compile: Compile convolution blocks on a CPU: ``on``, ``off``, or ``auto`` (if the work is
            large enough and a C++ compiler exists). On a GPU, batch norm and dropout are Triton's
            kernels unless it is ``off``, or unless Triton does not work there. This changes the
            gradients at most by rounding.
        samples: The number of samples that will be computed in total, for ``auto``.
        gpu_share: Has no effect: passes have the same size on every GPU.
        loss: Maps the model's outputs [n, ...] and the labels [n, ...] to the loss of each sample
            [n], by default the cross-entropy. Of a loss [n, ...], such as
            ``nn.MSELoss(reduction="none")``, each sample has its mean.
        compare: Compare the ways with each worker's own pass before the first call, on a copy of
            the model. False for a model whose tests have done so.

    Raises:
        ValueError: The model has no trainable parameter; in a call, the model draws random numbers
            and ``seeds`` is empty.

    Attributes:
        kind: The way in use; the first call may find that the model needs the next one.
        reason: Why the ways before it are not used; empty if it is the first one.
        blocks: The outcome for the convolution blocks at the first call, in a few words, such as
            ``2 of 2 compiled``.
        random: True if the model draws random numbers, in its layers or in ``forward``; the first
            call may find this out.
        matrix: The [m, d] matrix that each call overwrites.
        statistics: The [m, s] batch statistics that each call overwrites, in the order of
            ``buffers``.
        pass_values: The largest number of input values in a pass; set by the first call. On a CPU
            it depends on the memory that is free at the first call. On a GPU it does not depend on
            the memory, until a pass does not fit.
        kept: Bytes that a sample of the first call keeps for the backward pass before anything is
            compiled; 0 if unknown.
    """

    def __init__(
        self,
        model: nn.Module,
        workers: int,
        *,
        dtype: torch.dtype | None = None,
        kinds: Sequence[str] = KINDS,
        compile: str = "off",  # noqa: A002
        samples: float = math.inf,
        gpu_share: float = 1.0,  # an argument of version 1.0.0
        loss: Loss | None = None,
        compare: bool = True,
    ) -> None:
        self.model = model
        self.workers = workers = operator.index(workers)
        self._loss = loss
        self._trained: dict[str, Tensor] = {
            name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad
        }
        if not self._trained:
            raise ValueError("the model has no parameter to train. Try: requires_grad_(True)")
        self.parameters = _flatten(self._trained)
        self.dtype = dtype or self.parameters.dtype
        self._floating = {
            name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()
        }
        self.buffers = _flatten(self._floating) if self._floating else self.parameters.new_empty(0)
        self.matrix = self.parameters.new_zeros(workers, self.parameters.numel())
        self.statistics = self.parameters.new_zeros(workers, self.buffers.numel())
        self.pass_values = self.kept = 0
        self.random = any(is_random(module) for module in model.modules())
        self._shared = Shared(workers)
        self._gradients = _views(self.matrix, self._trained)
        self._statistics = _views(self.statistics, self._floating)
        self._twin: nn.Module | None = None
        self._chain: Chain | None = None
        self.reason = ""
        self._kinds = list(kinds)
        # called only by ordinary backward passes
        if any(parameter._backward_hooks for parameter in self._trained.values()):
            self._kinds, self.reason = (
                [kind for kind in kinds if kind == LOOP],
                "a parameter has a hook",
            )
        elif SHARED in kinds and not self._has_twin():
            self._kinds.remove(SHARED)
        self._compare, self._tried = compare, False
        self._compile, self._samples = compile, samples
        self.blocks = "off"

    @property
    def kind(self) -> str:
        return self._kinds[0]

    def __call__(self, inputs: Tensor, labels: Tensor, batches: int, seeds: Seeds) -> Tensor:
        """Compute the gradient of each of k <= m workers' mean loss over its samples.

        Args:
            inputs: [k, batches * B, c, h, w]; a worker's mini-batches follow one another.
            labels: [k, batches * B], class numbers; with a ``loss``, [k, batches * B, ...], what it
                takes.
            batches: The number of mini-batches per worker; batch norm normalises each by its own
                statistics.
            seeds: Seeds of each worker's mini-batches in turn, [k * batches], if the model is
                ``random``; else empty. In a captured graph, a tensor on the device.

        Returns:
            Mean losses [k]. The gradients are in the first k rows of ``matrix``, batch statistics
            in the first k rows of ``statistics``.
        """
        batches = operator.index(batches)
        ways: dict[str, Callable[[Tensor, Tensor, int, Seeds], Tensor]]
        ways = {SHARED: self._shared_passes, MAPPED: self._mapped, LOOP: self._loop}
        if self._compare and not self._tried:
            self._choose(inputs.flatten(0, 1), labels.flatten(0, 1))
        if self.random and not len(seeds):
            needed = len(inputs) * batches
            raise ValueError(
                f"seeds is empty, and the model draws random numbers. Try: {needed} new seeds "
                "for each call"
            )
        casts = (
            torch.autocast(inputs.device.type, self.dtype)
            if self._casts
            else contextlib.nullcontext()
        )
        with torch.enable_grad(), casts:
            while True:
                try:
                    losses = ways[self.kind](inputs, labels, batches, seeds)
                except (UnsupportedError, RuntimeError) as error:
                    self._recover(error, inputs)
                else:
                    self._tried = True
                    return losses

    def _choose(self, inputs: Tensor, labels: Tensor) -> None:
        """Leave out the ways that do not give each worker's own gradients; find out if ``forward``
        draws random numbers.
        """
        if self._kinds[-1] != LOOP:
            return
        make = functools.partial(WorkerGradients, compare=False, loss=self._loss)
        with torch.enable_grad():
            choice = choose(self.model, self._kinds, make, self.workers, inputs, labels)
        self._kinds, self.random = choice.kinds, self.random or choice.draws
        self.reason = "; ".join(filter(None, (self.reason, choice.reason)))
        if self.kind != SHARED:
            self.blocks = "none"
        if self.reason:
            warnings.warn(f"gradients by {self.kind}: {self.reason}", RuntimeWarning, stacklevel=3)

    def _recover(self, error: Exception, inputs: Tensor) -> None:
        """Make passes smaller, or use the next way; raise ``error`` if neither helps."""
        # a gradient left by the failed pass would look like a parameter that is used outside its
        # layer
        self.model.zero_grad(set_to_none=True)
        if out_of_memory(error):
            captured = inputs.is_cuda and torch.cuda.is_current_stream_capturing()
            if captured or self.kind != SHARED or self._workers_a_pass(inputs) < 2:
                raise error
            self.pass_values = inputs[0].numel() * (self._workers_a_pass(inputs) // 2)
            text = (
                f"out of memory: gradients of {self._workers_a_pass(inputs)} workers at a "
                "time from now on"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return
        if self._tried or len(self._kinds) == 1 or (inputs.is_cuda and not unsupported(error)):
            raise error
        failed = self._kinds.pop(0)
        self.reason = self.reason or f"the {failed} fails ({error})".partition("\n")[0]
        self.blocks = "none"

    def _workers_a_pass(self, inputs: Tensor) -> int:
        """Return the number of workers in ``inputs`` whose samples share a pass."""
        return min(len(inputs), max(1, self.pass_values // inputs[0].numel()))

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the model's logits in evaluation mode, with the server's running statistics: [n,
        c, h, w] -> [n, classes].
        """
        model = self._twin if self.kind == SHARED and self._twin is not None else self.model
        return cast(
            Tensor,
            _in_mode(model, training=False)(inputs.contiguous(memory_format=torch.channels_last)),
        )

    @property
    def _casts(self) -> bool:
        """Return True if autocast must compute in ``dtype``; the layers of the shared pass do this
        themselves.
        """
        return self.dtype != self.parameters.dtype and self.kind != SHARED

    def _has_twin(self) -> bool:
        try:
            self._twin = twin(self.model, self._shared).train()
            self._chain = chain_of(self._twin) if self._loss is None else None
        except UnsupportedError as error:
            self.reason = str(error)
            return False
        return True

    def _shared_passes(self, inputs: Tensor, labels: Tensor, batches: int, seeds: Seeds) -> Tensor:
        """Make shared forward and backward passes for a few workers at a time; return the losses
        [k].

        Raises UnsupportedError if the model uses a parameter in any way other than one call of its
        layer.
        """
        shared, model = self._shared, _in_mode(cast(nn.Module, self._twin), training=True)
        shared.batches = batches
        if not self._tried and not self.pass_values:
            self.pass_values = self._find_pass_values(inputs[0], model)
            if self._compile != "off":
                insist = self._compile == "on"
                self.blocks = compile_blocks(model, self._samples, insist=insist)
                shared.linear = linear.compiled_for(self.model, self._samples, insist=insist)
                shared.convolutions = conv_weights.compiled_for(
                    without_block(model), self._samples, insist=insist
                )
                if (
                    inputs.device.type == "cpu"
                    and self.dtype == self.parameters.dtype == torch.float32
                ):
                    norm.compile_norms(model, shared, self._samples * self.kept, insist=insist)
                if (
                    self.dtype in SINGLE
                    and self.parameters.dtype == torch.float32
                    and triton_works(inputs)
                ):
                    norm.use_gpu_kernels(model, shared)
        step = self._workers_a_pass(inputs)
        means = []
        for part in parts(len(inputs), step, inputs.device):
            shared.workers = part.stop - part.start
            shared.gradients = {name: view[part] for name, view in self._gradients.items()}
            shared.sow(seeds[part.start * batches : part.stop * batches], inputs.device)
            shared.written.clear()
            shared.statistics.clear()
            flat = (
                inputs[part]
                .flatten(0, 1)
                .to(self.dtype)
                .contiguous(memory_format=torch.channels_last)
            )
            # The first call makes an ordinary pass, because only this shows if a parameter is used
            # outside its layer.
            if self._tried and self._chain is not None and self._chain.serves(flat):
                with torch.no_grad():
                    losses = self._chain.losses(flat, labels[part].flatten(), shared.workers)
                means.append(losses.view(shared.workers, -1).mean(1))
                continue
            losses = self._losses(model(flat), labels[part].flatten(0, 1))
            means.append(losses.view(shared.workers, -1).mean(1))
            means[-1].sum().backward()  # type: ignore[no-untyped-call]
            if not self._tried:
                elsewhere = any(parameter.grad is not None for parameter in self.model.parameters())
                if elsewhere or sorted(shared.written) != sorted(self._gradients):
                    raise UnsupportedError("a parameter is used outside its layer")
            # a batch norm in evaluation mode has none of the batch
            for name, target in self._statistics.items():
                target[part].copy_(shared.statistics.get(name, self._floating[name]))
        return (torch.cat(means) if len(means) > 1 else means[0]).detach()

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, [n]."""
        if self._loss is None:
            return F.cross_entropy(accurate(outputs), labels, reduction="none")
        losses = self._loss(accurate(outputs), labels)
        if losses.shape[:1] != labels.shape[:1]:
            raise ValueError(
                f"loss returned the shape {list(losses.shape)} for {len(labels)} samples; "
                "expected a loss per sample [n]. "
                "Try: reduction='none'"
            )
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    def _mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch."""
        return (
            F.cross_entropy(accurate(outputs), labels)
            if self._loss is None
            else self._losses(outputs, labels).mean()
        )

    def _find_pass_values(self, samples: Tensor, model: nn.Module) -> int:
        """Return the number of input values in a pass: a constant, or fewer if their activations
        would take too much memory.
        """
        kept = 0

        def count(tensor: Tensor) -> None:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()

        self._shared.workers = 1
        self._shared.sow(range(self._shared.batches) if self.random else (), samples.device)
        flat = samples.to(self.dtype).contiguous(memory_format=torch.channels_last)
        # The hook keeps no tensor. A node that kept its own output would live until Python's
        # garbage collection, and with it the parameters' nodes of this stream. No other stream can
        # be captured if its backward pass has to wait for this one.
        with torch.autograd.graph.saved_tensors_hooks(count, lambda nothing: nothing):
            model(flat)
        self.kept = -(-kept // len(samples))
        if samples.is_cuda:
            return min(
                GPU_PASS_VALUES, int(GPU_PASS_BYTES / max(self.kept, 1)) * samples[0].numel()
            )
        return min(
            PASS_VALUES,
            int(PASS_SHARE * free_memory(samples.device) / max(kept, 1)) * samples.numel(),
        )

    def _mapped(self, inputs: Tensor, labels: Tensor, batches: int, seeds: Seeds) -> Tensor:
        """Map one functional gradient over mini-batches by ``vmap``; return the losses [k]."""
        parameters = {name: parameter.detach() for name, parameter in self._trained.items()}
        self.model.train()
        self.statistics.copy_(self.buffers)  # a model that changes its buffers cannot be mapped

        def loss(weights: dict[str, Tensor], batch: Tensor, target: Tensor) -> Tensor:
            return self._mean_loss(
                torch.func.functional_call(self.model, weights, (batch,)), target
            )

        mapped = torch.func.vmap(
            torch.func.grad_and_value(loss), in_dims=(None, 0, 0), randomness="error"
        )
        step = max(1, PASS_VALUES // inputs[0].numel())
        means = []
        for start in range(0, len(inputs), step):
            part = slice(start, start + step)
            samples, targets = inputs[part], labels[part]
            grouped = samples.reshape(len(samples) * batches, -1, *samples.shape[2:])
            gradients, losses = mapped(
                parameters, grouped, targets.reshape(len(grouped), -1, *targets.shape[2:])
            )
            for name, view in self._gradients.items():
                torch.mean(
                    gradients[name].view(len(samples), batches, *view.shape[1:]),
                    1,
                    out=view[part][: len(samples)],
                )
            means.append(losses.view(len(samples), batches).mean(1))
        return torch.cat(means).detach()

    def _loop(self, inputs: Tensor, labels: Tensor, batches: int, seeds: Seeds) -> Tensor:
        """Make an ordinary forward and backward pass for each worker and mini-batch; return the
        losses [k].
        """
        self.model.train()
        parameters = list(self._trained.values())
        losses = inputs.new_zeros(len(inputs))
        self.matrix.zero_()
        self.statistics.zero_()
        before = self.buffers.clone()
        momenta = _set_statistics_momentum(self.model, 1.0)
        with generators_kept(inputs.device):
            for worker in range(len(inputs)):
                pairs = zip(
                    inputs[worker].chunk(batches), labels[worker].chunk(batches), strict=True
                )
                for number, (batch, target) in enumerate(pairs):
                    if len(seeds):
                        seed_generators(int(seeds[worker * batches + number]))
                    self.buffers.copy_(before)
                    loss = self._mean_loss(self.model(batch), target)
                    gradients = torch.autograd.grad(
                        loss, parameters, allow_unused=True, materialize_grads=True
                    )
                    flat = torch.cat([gradient.flatten() for gradient in gradients])
                    self.matrix[worker].add_(flat, alpha=1 / batches)
                    self.statistics[worker].add_(self.buffers, alpha=1 / batches)
                    losses[worker] += loss.detach() / batches
        for module, momentum in momenta.items():
            module.momentum = momentum
        self.buffers.copy_(before)
        return losses


def parts(count: int, most: int, device: torch.device) -> list[slice]:
    """Split ``count`` items into as few parts of at most ``most`` as possible; on a GPU, into parts
    of the same size.

    A small pass takes a GPU almost as long as a large one. On a CPU only the last part is smaller,
    as in all stored runs, because parts change sums by rounding.
    """
    number = -(-count // most)
    bounds = [
        count * part // number if device.type == "cuda" else part * most for part in range(number)
    ]
    return [slice(*pair) for pair in itertools.pairwise([*bounds, count])]


def _in_mode(model: nn.Module, *, training: bool) -> nn.Module:
    """Return the model in training or evaluation mode; the mode is set in all modules unless it is
    already set.
    """
    return model if model.training is training else model.train(training)


def _set_statistics_momentum(
    model: nn.Module, momentum: float
) -> dict[nn.BatchNorm2d, float | None]:
    """Make running statistics the statistics of the last batch only; return the old settings."""
    norms = [
        module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)
    ]
    old = {cast(nn.BatchNorm2d, module): module.momentum for module in norms}
    for module in norms:
        module.momentum = momentum
    return old


def _flatten(tensors: dict[str, Tensor]) -> Tensor:
    """Copy the tensors into one vector and make each a view of its part."""
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors.values()])
    for tensor, view in zip(tensors.values(), _views(flat[None], tensors).values(), strict=True):
        tensor.data = view[0]
    return flat


def _views(rows: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return views [m, *shape] of [m, d], one for each tensor."""
    views, start = {}, 0
    for name, tensor in tensors.items():
        views[name] = rows[:, start : start + tensor.numel()].view(len(rows), *tensor.shape)
        start += tensor.numel()
    return views


def unsupported(error: Exception) -> bool:
    """Return True if the next way may compute what failed; on a GPU, other errors come from the
    device or its libraries.
    """
    kinds = UnsupportedError, NotImplementedError
    return isinstance(error, kinds) or any(text in str(error) for text in TRANSFORMS)


def out_of_memory(error: Exception) -> bool:
    """Return True if a smaller pass may fit."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in MEMORY)
