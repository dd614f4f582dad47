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
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynabro_cli.core.machine.gpu_kernels import KernelOffError, triton_works
from dynabro_cli.gradients.agreement import choose
from dynabro_cli.gradients.generators import generators_kept, seed_generators
from dynabro_cli.gradients.kernels import conv_weights, linear
from dynabro_cli.gradients.layers import norm
from dynabro_cli.gradients.layers.chain import Chain, chain_of
from dynabro_cli.gradients.layers.conv_block import compile_blocks, without_block
from dynabro_cli.gradients.layers.twin import UnsupportedError, is_random, twin
from dynabro_cli.gradients.layers.worker_layers import Shared
from dynabro_cli.gradients.memory import free_memory
from dynabro_cli.gradients.network import Loss, Network, batch_statistics, views
from dynabro_cli.gradients.state import ModuleState, torch_defaults
from dynabro_cli.gradients.trial import Trial, examine, mixes

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

MIXES = (
    "forward mixes samples in evaluation mode, so test accuracy depends on the parts in "
    "which the test set is computed"
)

Seeds = Sequence[int] | Tensor


class WorkerGradients:
    """The gradients of all or some workers at one model.

    The model's trainable parameters become views of ``parameters`` [d], and its buffers of the same
    type views of ``buffers`` [s] (running statistics), so that the server updates the model by
    writing to these two. Parameters with ``requires_grad=False`` and other buffers, such as whole
    numbers, stay as they are. Every pass begins from these values, whatever ``forward`` changes.
    The caller's autocast, default type and default device have no effect.

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
        loss: Maps what the model returns, such as outputs [n, ...], a tuple or a dict, and the
            labels [n, ...] to the loss of each sample [n], by default the cross-entropy. Of a loss
            [n, ...], such as ``nn.MSELoss(reduction="none")``, each sample has its mean.
        compare: Try the model before the first call, and compare the ways with each worker's own
            pass on a copy of it. False for a model whose tests have done so.
        classes: The number of logits that the trial expects at least; None to accept any number.

    Raises:
        ValueError: The model has no trainable parameter; in a call, the model draws random numbers
            and ``seeds`` is empty, keeps state from one mini-batch to the next outside of its
            parameters and buffers, or returns no logits without a ``loss``.

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
        classes: int | None = None,
    ) -> None:
        self.model = model
        self.workers = workers = operator.index(workers)
        network = self._network = Network(model, dtype, loss, classes)
        self.parameters, self.buffers = network.parameters, network.buffers
        self.dtype = network.dtype
        self.matrix = self.parameters.new_zeros(workers, self.parameters.numel())
        self.statistics = self.parameters.new_zeros(workers, self.buffers.numel())
        self.pass_values = self.kept = 0
        self.random = any(is_random(module) for module in model.modules())
        self._shared = Shared(workers)
        self._gradients = views(self.matrix, network.trained)
        self._statistics = views(self.statistics, network.floating)
        self._twin: nn.Module | None = None
        self._chain: Chain | None = None
        self.reason = ""
        self._kinds = list(kinds)
        # called only by ordinary backward passes
        if any(parameter._backward_hooks for parameter in network.trained.values()):
            self._kinds, self.reason = (
                [kind for kind in kinds if kind == LOOP],
                "a parameter has a hook",
            )
        elif SHARED in kinds and not self._has_twin():
            self._kinds.remove(SHARED)
        self._compare, self._tried = compare, False
        self._as_floats = False
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
        with torch_defaults(self.parameters.dtype, self.parameters.device), torch.enable_grad():
            if self._compare and not self._tried:
                self._try(inputs, labels, batches)
            if self.random and not len(seeds):
                needed = len(inputs) * batches
                raise ValueError(
                    f"seeds is empty, and the model draws random numbers. Try: {needed} new seeds "
                    "for each call"
                )
            if self._as_floats:
                inputs = inputs.to(self.parameters.dtype)
            if self._compare:  # ``forward`` may change them in place
                inputs = inputs.clone()
            return self._computed(inputs, labels, batches, seeds)

    def _computed(self, inputs: Tensor, labels: Tensor, batches: int, seeds: Seeds) -> Tensor:
        """Compute by the first way that works."""
        ways: dict[str, Callable[[Tensor, Tensor, int, Seeds], Tensor]]
        ways = {SHARED: self._shared_passes, MAPPED: self._mapped, LOOP: self._loop}
        while True:
            try:
                losses = ways[self.kind](inputs, labels, batches, seeds)
            except (UnsupportedError, RuntimeError) as error:
                self._recover(error, inputs)
            else:
                self._tried = True
                return losses

    def _try(self, inputs: Tensor, labels: Tensor, batches: int) -> None:
        """Try the model; leave out the ways that do not give each worker's own gradients."""
        if self._kinds[-1] != LOOP:
            return
        # the first mini-batch, and another one if there is one
        x, y = (
            data.reshape(len(data) * batches, -1, *data.shape[2:])[[0, -1]]
            for data in (inputs, labels)
        )
        network = self._network
        compute = functools.partial(examine, self.model, network.own_pass, network.outputs)
        with batch_statistics(self.model):
            try:
                trial, evaluation = compute(x, y)
            except RuntimeError:
                if x.is_floating_point():
                    raise
                # pixels, for layers that take no integers
                self._as_floats, x = True, x.to(self.parameters.dtype)
                trial, evaluation = compute(x, y)
        self.random = self.random or trial.draws
        reasons = [self.reason, self._leave_out(trial)]
        if len(self._kinds) > 1:
            make = functools.partial(WorkerGradients, workers=2, compare=False, loss=network.loss)
            choice = choose(self.model, self._kinds, make, x, y)
            self._kinds = choice.kinds
            reasons.append(choice.reason)
        if evaluation is not None and mixes(evaluation):
            reasons.append(MIXES)
        self.reason = "; ".join(filter(None, reasons))
        if self.kind != SHARED:
            self.blocks = "none"
        if self.reason:
            warnings.warn(f"gradients by {self.kind}: {self.reason}", RuntimeWarning, stacklevel=3)

    def _leave_out(self, trial: Trial) -> str:
        """Leave out the ways in which what ``forward`` changes would be lost; return why."""
        norms = [
            f"{prefix}.{name}".lstrip(".")
            for prefix, part in self.model.named_modules()
            if isinstance(part, nn.modules.batchnorm._NormBase)
            for name in part._buffers
        ]
        changed = [name for name in trial.changed if name not in norms]
        if trial.draws or changed:
            self._kinds = [LOOP]
        elif trial.changed or trial.attributes:
            self._kinds = [kind for kind in self._kinds if kind != MAPPED]
        reason = "forward draws random numbers" if trial.draws else ""
        if changed:
            reason = f"forward changes {', '.join(changed)}"
        if kept := [name for name in changed if name not in self._network.floating]:
            reason += f"; each pass begins with the first value of {', '.join(kept)}"
        return reason

    def _recover(self, error: Exception, inputs: Tensor) -> None:
        """Make passes smaller, or use the next way; raise ``error`` if neither helps."""
        # a gradient left by the failed pass would look like a parameter that is used outside its
        # layer
        self.model.zero_grad(set_to_none=True)
        if isinstance(error, KernelOffError):
            before = self._shared.functions
            norm.use_gpu_kernels(cast(nn.Module, self._twin), self._shared)
            if self._shared.functions != before:
                return
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
        model = _in_mode(model, training=False)
        state = ModuleState(model) if self._compare else None
        with torch_defaults(self.parameters.dtype, self.parameters.device):
            if self._as_floats:
                inputs = inputs.to(self.parameters.dtype)
            logits = model(_laid_out(inputs.clone() if self._compare else inputs))
        if state is not None:
            state.put_back()
        return cast(Tensor, logits)

    def _has_twin(self) -> bool:
        try:
            self._twin = twin(self.model, self._shared).train()
            self._chain = chain_of(self._twin) if self._network.loss is None else None
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
                    and triton_works("norm", inputs)
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
            flat = self._flat(inputs[part].flatten(0, 1))
            # The first call makes an ordinary pass, because only this shows if a parameter is used
            # outside its layer.
            if self._tried and self._chain is not None and self._chain.serves(flat):
                with torch.no_grad():
                    losses = self._chain.losses(flat, labels[part].flatten(), shared.workers)
                means.append(losses.view(shared.workers, -1).mean(1))
                continue
            losses = self._network.losses(model(flat), labels[part].flatten(0, 1))
            means.append(losses.view(shared.workers, -1).mean(1))
            means[-1].sum().backward()  # type: ignore[no-untyped-call]
            if not self._tried:
                elsewhere = any(parameter.grad is not None for parameter in self.model.parameters())
                if elsewhere or sorted(shared.written) != sorted(self._gradients):
                    raise UnsupportedError("a parameter is used outside its layer")
            # a batch norm in evaluation mode has none of the batch
            for name, target in self._statistics.items():
                target[part].copy_(shared.statistics.get(name, self._network.floating[name]))
        return (torch.cat(means) if len(means) > 1 else means[0]).detach()

    def _flat(self, samples: Tensor) -> Tensor:
        """Return samples [n, ...] as the shared pass takes them; tokens stay integers."""
        return _laid_out(samples.to(self.dtype) if samples.is_floating_point() else samples)

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
        flat = self._flat(samples.clone())  # ``forward`` may change its inputs in place
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
        parameters = {name: parameter.detach() for name, parameter in self._network.trained.items()}
        self.model.train()
        self.statistics.copy_(self.buffers)  # a model that changes its buffers cannot be mapped

        def loss(weights: dict[str, Tensor], batch: Tensor, target: Tensor) -> Tensor:
            return self._network.mean_loss(
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
            with (
                self._network.casting(),
                contextlib.nullcontext() if self._tried else _NoNewMemory(),
            ):
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
        losses = self.parameters.new_zeros(len(inputs))
        self.matrix.zero_()
        self.statistics.zero_()
        with generators_kept(inputs.device), batch_statistics(self.model.train()):
            state = ModuleState(self.model)
            for worker in range(len(inputs)):
                pairs = zip(
                    inputs[worker].chunk(batches), labels[worker].chunk(batches), strict=True
                )
                for number, (batch, target) in enumerate(pairs):
                    if len(seeds):
                        seed_generators(int(seeds[worker * batches + number]))
                    try:
                        loss, gradient, buffers = self._network.own_pass(batch.clone(), target)
                    finally:
                        state.put_back()
                    self.matrix[worker].add_(gradient, alpha=1 / batches)
                    self.statistics[worker].add_(buffers, alpha=1 / batches)
                    losses[worker] += loss / batches
        return losses


class _NoNewMemory(TorchFunctionMode):
    """Refuse ``tensor.data = ...``, which would end the process if vmap maps the value."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch's."""
        if function == Tensor.data.__set__:  # type: ignore[attr-defined]
            raise NotImplementedError("vmap cannot assign .data")
        return function(*arguments, **(named or {}))


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


def _laid_out(samples: Tensor) -> Tensor:
    """Return images [n, c, h, w] channels last, and other samples contiguous."""
    last = torch.channels_last if samples.ndim == 4 else torch.contiguous_format
    return samples.contiguous(memory_format=last)


def _in_mode(model: nn.Module, *, training: bool) -> nn.Module:
    """Return the model in training or evaluation mode; the mode is set in all modules unless it is
    already set.
    """
    return model if model.training is training else model.train(training)


def unsupported(error: Exception) -> bool:
    """Return True if the next way may compute what failed; on a GPU, other errors come from the
    device or its libraries.
    """
    kinds = UnsupportedError, NotImplementedError
    return isinstance(error, kinds) or any(text in str(error) for text in TRANSFORMS)


def out_of_memory(error: Exception) -> bool:
    """Return True if a smaller pass may fit."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in MEMORY)
