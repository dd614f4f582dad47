"""Start of a simulation from a spec: device, data, model, and the first row of the database."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from dynabro_cli import __version__
from dynabro_cli.components.methods._api import NOISE_COMPUTATIONS, Method
from dynabro_cli.components.partitions._api import server_samples
from dynabro_cli.components.tasks._api import Images, Objective
from dynabro_cli.core import events
from dynabro_cli.core.errors import CheckpointError, PluginError, SpecError
from dynabro_cli.core.machine import gpu_kernels
from dynabro_cli.core.machine.devices import check_computes, current, refuse_spoilt
from dynabro_cli.core.machine.native import check_choice, cpu_name
from dynabro_cli.core.registration import METRICS, Component, plugins
from dynabro_cli.core.registration.digests import digests_of
from dynabro_cli.core.streams import Streams
from dynabro_cli.experiment.build import data_directory
from dynabro_cli.experiment.complete import CompleteSpec, answering, chain_setting
from dynabro_cli.experiment.data import digest_of_files, noting, read
from dynabro_cli.experiment.key import canonical_json
from dynabro_cli.experiment.resolve import Run, resolve
from dynabro_cli.experiment.spec import RunSpec
from dynabro_cli.gradients.generators import Draws, seeded
from dynabro_cli.gradients.memory import keep_pages
from dynabro_cli.gradients.state import torch_defaults
from dynabro_cli.gradients.trial import ModelError
from dynabro_cli.simulation import precision
from dynabro_cli.simulation.checkpoint import Checkpoint
from dynabro_cli.simulation.compilation import Compiler, use_kernels
from dynabro_cli.simulation.loop import Simulation
from dynabro_cli.simulation.need import build_network, check_room, model_size
from dynabro_cli.simulation.placing import device_of
from dynabro_cli.simulation.problem.images import ImageProblem
from dynabro_cli.simulation.problem.interface import Problem, measure_noise
from dynabro_cli.simulation.problem.objective import ObjectiveProblem
from dynabro_cli.simulation.problem.shares import Counts, for_server, hold_out, share_out
from dynabro_cli.simulation.round.parts import Parts, State
from dynabro_cli.simulation.weights import weights_of

PLANNED_ROUNDS = 1000
ONE_THREAD_VALUES = 1 << 18
"""Largest m x d of a run that uses one thread if no number is given."""
# the process's number of threads while a small run has replaced it
_threads_before: int | None = None

Load = Callable[[Component[Any], Path], Images | Objective]


def simulate(
    spec: RunSpec,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    compile: str = "auto",  # noqa: A002
    force: bool = False,
    progress: Callable[[events.Event], object] | None = None,
    weights: events.SaveAt = "never",
) -> Iterator[events.Event]:
    """Run one spec and yield its events: ``Started``, then rounds and evaluations, then
    ``Finished`` or ``Diverged``.

    Args:
        spec: The run.
        data_dir: The folder of data sets; by default ``DYNABRO_DATA``, or a folder in the
            platform's cache.
        device: ``auto`` (a GPU if there is one and the model is not small), ``cpu``, ``cuda`` or
            ``cuda:N``. A task without a model computes on the CPU.
        threads: CPU threads to compute with, for the whole process; by default torch's own number,
            or one for a small model.
        compile: Compile kernels: ``on``, ``off``, or ``auto``. This changes the numbers only by
            rounding.
        force: True to start even if the estimated memory exceeds the free memory.
        progress: Called with each event before it is yielded, for example to move a bar.
        weights: When to yield the model's weights: ``never``, at the ``end``, or after all
            ``evaluations``.

    The spec's ``precision`` also sets torch's switches for the whole process.

    Raises:
        SpecError: The spec, the device, or another argument is not legal, or the run needs more
            memory than is free.
        NotFoundError: The data are missing.
        RunError: An earlier error on the GPU makes this process unusable.

    Example:
        >>> from dynabro_cli import RunSpec, simulate
        >>> spec = RunSpec(task="quadratic", method="sgd", aggregator="cwmed", budget=20)
        >>> type(list(simulate(spec))[-1]).__name__
        'Finished'
    """
    run = resolve(spec, data_directory(data_dir))
    if not force:
        check_room(run, device_of(run, device), compiles=compile != "off")
    stream = simulate_run(
        run, data_dir=data_dir, device=device, threads=threads, compile=compile, weights=weights
    )
    return stream if progress is None else _reporting(stream, progress)


def _reporting(
    stream: Iterator[events.Event], progress: Callable[[events.Event], object]
) -> Iterator[events.Event]:
    for event in stream:
        progress(event)
        yield event


def simulate_run(
    run: Run,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    compile: str = "auto",  # noqa: A002
    load: Load | None = None,
    resume: bytes | None = None,
    wanted: Callable[[], bool] = lambda: False,
    weights: events.SaveAt = "never",
    most_threads: bool = False,
) -> Iterator[events.Event]:
    """Run one resolved run and yield its events, like ``simulate``.

    Args:
        run: The run.
        data_dir: See ``simulate``.
        device: See ``simulate``.
        threads: See ``simulate``.
        compile: See ``simulate``.
        load: Loads the data of a task, and may keep them for the next run; None to read them for
            this run.
        resume: The data of a ``Checkpointed`` of the same run, to resume from. If it is unusable
            (damaged, or made by other code, from other data, or by another version of dynabro or
            torch), the run starts over.
        wanted: Called after every round; if it returns True, ``Checkpointed`` is also yielded.
        weights: See ``simulate``.
        most_threads: True if ``threads`` is an upper limit; a small model then uses one thread, as
            it does if ``threads`` is None.
    """
    check_choice(compile)
    if weights not in get_args(events.SaveAt):
        raise SpecError(
            f"weights={weights!r} is not legal; legal: {', '.join(get_args(events.SaveAt))}"
        )
    run = run.with_data(data_directory(data_dir))
    where = device_of(run, device)
    if compile == "on" and run.model is not None:
        Compiler("on", work=0, device=where)  # refused before data are read
    precision.check(run.spec.precision, str(where))
    refuse_spoilt(str(where))
    if where.type == "cuda":
        check_computes(where)
    keep_pages()
    _set_threads(
        threads, single=where.type == "cpu" and (threads is None or most_threads) and _is_small(run)
    )
    if where.type == "cuda":
        warnings.filterwarnings("ignore", message=".* does not have a deterministic implementation")
        # cuBLAS repeats its products bit for bit only with workspaces of a fixed size
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return _guarded(run, where, compile, load, resume, wanted, weights)


def _is_small(run: Run) -> bool:
    """Return True if the run's tensors are small: threads that share them wait longer than they
    compute.
    """
    shape, dimension = run.parts.task.shape, run.parts.task.dimension
    if run.model is not None and shape is not None:
        dimension = model_size(run.model, shape).parameters
    return dimension is not None and dimension * run.spec.workers <= ONE_THREAD_VALUES


def _set_threads(threads: int | None, *, single: bool) -> None:
    """Set torch's number of threads; None without ``single`` restores the number from before small
    runs.
    """
    global _threads_before
    now = torch.get_num_threads()
    # the caller may have set another number since
    before = _threads_before if _threads_before and now == 1 else now
    _threads_before = before if single else None
    torch.set_num_threads(1 if single else threads or before)


def _usable(
    data: bytes | None, spec: CompleteSpec, code: str | None
) -> tuple[Checkpoint | None, str | None]:
    """Return the checkpoint, or None and the reason why it is not used."""
    try:
        return (None if data is None else Checkpoint.decode(data, spec, code)), None
    except CheckpointError as error:
        return None, str(error)


def _guarded(
    run: Run,
    device: torch.device,
    compile: str,  # noqa: A002
    load: Load | None,
    resume: bytes | None,
    wanted: Callable[[], bool],
    weights: events.SaveAt,
) -> Iterator[events.Event]:
    """Run with the settings of ``_settings``, which end before each ``yield``."""
    draws = Draws(device=device)
    # models and tasks are seeded where they are called
    called = (run.method, run.aggregator, *run.pre_aggregators, run.attack, run.switching, run.data)
    if not all(part.entry.shipped for outer in called for part in (outer, *outer.inner)):
        draws = Draws(Streams(run.spec.seed), device)
        run = dataclasses.replace(run)  # its parts are built again, because factories may draw
    with _settings(device, compile):
        prepare = draws("init", _prepare)
        simulation, started = prepare(run, device, compile, load, resume, draws)
        before = simulation.how
    yield started
    stream = simulation.events(wanted)
    last: events.Evaluated | None = None
    while True:
        with _settings(device, compile):
            event = next(stream, None)
        if event is None:
            return
        if isinstance(event, events.Evaluated):
            last = event
        elif isinstance(event, events.Finished | events.Diverged):
            # a run may end in another way than it began: with smaller passes after a GPU ran out of
            # memory, or without a compiler that failed
            changed = {name: now for name, now in simulation.how.items() if before.get(name) != now}
            event = dataclasses.replace(event, how=changed)
            if weights != "never" and last is not None:
                yield weights_of(run, simulation.weights(), last, final=True)
        yield event
        if (
            weights == "evaluations"
            and isinstance(event, events.Evaluated)
            and event.budget < run.spec.budget
        ):
            yield weights_of(run, simulation.weights(), event, final=False)


@contextlib.contextmanager
def _settings(device: torch.device, compile: str) -> Iterator[None]:  # noqa: A002
    """Compute on the run's GPU, deterministically, without autograd (only for gradients), without
    Triton's kernels if ``compile`` is ``off``, and without the caller's autocast and default types.
    """
    deterministic: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory
    with (
        torch_defaults(torch.float32, torch.device("cpu")),
        torch.no_grad(),
        current(device),
        gpu_kernels.allowed(compile != "off"),
    ):
        if device.type == "cuda":
            torch.set_deterministic_debug_mode("warn")
            # else torch fills every new empty tensor with NaN, which takes time
            deterministic.fill_uninitialized_memory = False
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before[0])
            deterministic.fill_uninitialized_memory = before[1]


def _prepare(
    run: Run,
    device: torch.device,
    compile: str,  # noqa: A002
    load: Load | None = None,
    resume: bytes | None = None,
    draws: Draws | None = None,
) -> tuple[Simulation, events.Started]:
    spec = run.spec
    senders = chain_setting(spec).workers
    draws = draws or Draws()
    streams = Streams(spec.seed)
    dtype = precision.apply(spec.precision, device)
    data = (
        read(run.task, run.data_dir, run.parts.task)
        if load is None
        else load(run.task, run.data_dir)
    )
    problem, counts, files = _problem(run, data, device, streams, dtype, compile)
    content: dict[str, str | None] = {spec.task: data.digest} if isinstance(data, Images) else {}
    if run.model is not None:
        content |= digest_of_files(run.model, run.data_dir, files)
    code = digests_of(run.components, content, METRICS if content else ())
    checkpoint, unused = _usable(resume, spec, code)
    method, aggregator = run.assemble()
    aggregates = _planned(method, streams, spec.budget)
    use_kernels(compile, aggregates)
    compiler = Compiler(
        "off" if run.model is None else compile,  # never for an objective
        work=aggregates * senders * problem.x.numel(),
        device=device,
    )
    attack, switching = run.parts.attack, run.parts.switching
    state = State()
    if method.wants_noise:
        noise_bound = checkpoint.noise_bound if checkpoint is not None else None
        method, aggregator = run.assemble(
            measure_noise(problem, switching) if noise_bound is None else noise_bound
        )
        state.spent = NOISE_COMPUTATIONS
    who = _answering(spec) if senders < spec.workers else None
    cohort = run.cohort_rule(method)
    parts = Parts(
        spec,
        problem,
        method,
        aggregator,
        attack,
        switching,
        streams,
        compiler,
        cohort,
        who,
        code,
        draws,
    )
    simulation = Simulation(parts, state)
    record = _record(run, device, method.noise_bound, problem, simulation.how) | {
        "code_digests": code
    }
    if checkpoint is not None:
        try:
            simulation.restore(checkpoint)
        except CheckpointError as error:
            simulation, started = _prepare(run, device, compile, load)
            return simulation, dataclasses.replace(started, unused=str(error))
    how, notes = simulation.how, tuple[str, ...](getattr(data, "notes", ()))
    notes += gpu_kernels.notes() if compiler.reason == "triton" else ()
    if reason := how.get("gradients_reason"):
        notes += (f"model {spec.model!r}: gradients by {how['gradients']}: {reason}",)
    totals = None if checkpoint is None else checkpoint.totals
    return simulation, events.Started(run.key, record, totals, counts, unused, notes)


def _answering(spec: CompleteSpec) -> Callable[[int], torch.Tensor]:
    """Return the workers that answer in each round."""
    return lambda round_: torch.from_numpy(
        answering(spec.seed, spec.participation, spec.workers, round_)
    )


def _planned(method: Method, streams: Streams, budget: int) -> float:
    """Return the number of aggregates of the run, extrapolated from the first thousand rounds."""
    rounds, aggregates, spent = 0, 0, 0
    while rounds < PLANNED_ROUNDS and spent < budget:
        prefixes = method.plan(streams.moved("level", rounds)).prefixes
        rounds += 1
        aggregates += len(prefixes)
        spent += prefixes[-1]
    return aggregates * max(1.0, budget / spent)


def _problem(
    run: Run,
    data: Images | Objective,
    device: torch.device,
    streams: Streams,
    dtype: torch.dtype,
    compile: str,  # noqa: A002
) -> tuple[Problem, Counts, dict[str, Any]]:
    """Return the problem, the number of samples by worker and label for ``Started``, and the files
    that the model was built from.
    """
    spec = run.spec
    workers, batch_size = spec.workers, spec.batch_size
    if not isinstance(data, Images):
        return ObjectiveProblem(data, workers, batch_size, streams), (), {}
    data, validation = hold_out(data, spec.validation)
    data, server = for_server(data, server_samples(spec.data), streams)
    if batch_size > len(data.train_labels):
        raise SpecError(
            f"batch_size={batch_size} is larger than the {len(data.train_labels)} training "
            f"samples of {spec.task!r}. "
            "Try: a smaller --batch-size"
        )
    if run.model is None:
        raise SpecError(f"task {spec.task!r} needs a model. Try: --model NAME")
    with seeded(streams.integer("partition", 0)):  # a user's partition may draw
        shares = share_out(run.parts.partition, spec.data, data, workers, streams)
    # not the files that dynabro opens for the model: what a cache has differs between machines
    with noting(threading.get_ident()) as files:
        model = build_network(run.model, data.shape, streams)
    where = (
        model.to(device),
        workers,
        batch_size,
        streams,
        device,
        dtype,
        shares,
        validation,
        server,
    )
    compare = not run.model.entry.shipped  # the tests compare the shipped models
    try:
        problem = ImageProblem(data, *where, compile=compile, budget=spec.budget, compare=compare)
    except ModelError as error:
        raise PluginError(f"model {spec.model!r} {error.problem}") from error
    return problem, () if shares is None else shares.counts, files


def _record(
    run: Run,
    device: torch.device,
    noise_bound: float | None,
    problem: Problem,
    how: dict[str, object],
) -> dict[str, object]:
    """Return the columns of the run's row in the database that are known from the start."""
    return dataclasses.asdict(run.spec) | {
        "spec": canonical_json(run.mapping),
        "dimension": problem.x.numel(),
        "noise_bound": noise_bound,
        "device": str(device)
        if device.type == "cpu"
        else f"{device} {torch.cuda.get_device_name(device)}",
        "host": platform.node(),
        "versions": canonical_json(versions() | how),
    }


def versions() -> dict[str, object]:
    """Return the versions of the programs behind the numbers, the number of threads, the processor
    with the vector instructions that torch uses, and the plugins if any are loaded.
    """
    named = [plugin.name for plugin in plugins.loaded()]
    return ({"plugins": named} if named else {}) | {
        "dynabro": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": metadata.version("torchvision") if find_spec("torchvision") else None,
        "numpy": np.__version__,
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
