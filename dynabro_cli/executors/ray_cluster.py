"""Run many specs in a Ray cluster, a task each, with every write to the database in this process."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Engine

from dynabro_cli import __version__
from dynabro_cli.errors import DynabroError, NotFoundError, PreemptedError, RunError, SpecError
from dynabro_cli.executors._api import Listener, Options, Outcome
from dynabro_cli.executors.ledger import Ledger, Slot
from dynabro_cli.executors.local import current_commit
from dynabro_cli.executors.processes import check_options
from dynabro_cli.executors.signs_of_life import signs_of_life
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.store.recorder import Recorder
from dynabro_cli.store.repetition import Standing, repetition
from dynabro_cli.store.side_files import SideFiles
from dynabro_cli.store.translation import translated_errors

EXECUTOR = "ray"
SIMULATION = "dynabro_cli.executors.worker:simulation"
SYSTEM_RETRIES = 3
"""How often, at least, a run is begun again whose process or node was lost; a checkpoint on the way sets the count back."""
MOST_SLOTS = 1000
CONNECT_SECONDS = 10.0
CONNECT_ATTEMPTS = 3
"""How often a ``ray://`` connection is tried: the server gives up where a process of its own is slow to start."""
START_SECONDS = 120.0
"""How long the first process in the cluster may take to start."""
HEAD = "node:__internal_head__"
"""What Ray calls the resource that its head node alone has."""
DEVICES = ("auto", "cpu", "cuda")


def execute_all_on_ray(
    runs: Sequence[Run],
    engine: Engine,
    options: Options,
    listener: Listener,
    *,
    files: SideFiles | None = None,
    address: str | None = None,
    entry: str = SIMULATION,
) -> list[Outcome]:
    """Make every run in a Ray cluster, several at a time, and store them; return what became of each, in the order of ``runs``.

    As ``processes.execute_all``, but for this: a run takes ``threads`` CPUs (1 where that is None) and a ``jobs_per_gpu``-th
    of a GPU where the device is ``cuda``, or is ``auto`` and the cluster has any; ``jobs`` is how many runs the cluster is
    asked for at a time, by default as many as fit it; ``data_dir`` is a folder on the nodes. A run whose process or node is
    lost is begun again ``SYSTEM_RETRIES`` or ``max_retries`` times, whichever is more, counted anew after each checkpoint.

    Where the program is connected to Ray already, that connection is used.

    Args:
        runs: What to run; no two with one key.
        engine: A database opened for writing, by this process alone; the nodes need not reach it.
        options: How to run it.
        listener: Is told what happens.
        files: Where checkpoints and logs are; by default beside the database.
        address: ``HOST:PORT`` of a cluster that this machine is a node of, ``ray://HOST:PORT`` of any, or ``auto``, as by
            default: ``RAY_ADDRESS``, or the cluster that was started on this machine.
        entry: What returns the function that makes a run, as ``module:name``, on the nodes.

    Raises:
        SpecError: Ray is not installed, or an option is not legal, or not for the cluster; nothing has begun.
        NotFoundError: There is no cluster at the address.
        InterruptedRunError: Ctrl-C; what was running is stored as interrupted, with a checkpoint where it reached one.
        PreemptedError: The same, by SIGTERM.
        RunError: The nodes cannot begin a run.
        DisconnectedError: The cluster, or the connection to it, is gone; what was stored before is intact.
        DynabroError: The database cannot be written; what was stored before is intact.
    """
    check_options(options)
    if options.device not in DEVICES:
        raise SpecError(f"device={options.device} is not legal on Ray, which gives out GPUs; legal: {', '.join(DEVICES)}")
    _import_ray()
    from dynabro_cli.executors.ray_scheduler import RayScheduler

    with _connected(address or "auto") as ray:
        share = _share(options, ray.nodes(), runs)
        options = replace(
            options, threads=share.cpus, device=share.device, max_retries=max(options.max_retries, SYSTEM_RETRIES)
        )
        commit, files = current_commit(), files or SideFiles.of(engine.url)
        with translated_errors(engine.url), engine.connect() as connection:
            repeat = repetition(connection, options.sweep, options.rerun)
            stored = Standing(connection, repeat).stored(run.key for run in runs)
        slots = [
            Slot(
                number,
                Recorder(engine, git_commit=commit, sweep=options.sweep, repeat=repeat, files=files),
                share.device,
            )
            for number in range(min(options.jobs or MOST_SLOTS, len(runs)))
        ]
        ledger = Ledger(runs, options, files, listener, stored)
        mailbox = _mailbox(ray)
        owners = [slot.recorder.owner for slot in slots]
        stated = replace(options, jobs=options.jobs or max(1, share.fit(ray.nodes())))
        with signs_of_life(engine, ledger.outcomes, owners, stated, EXECUTOR, repeat):
            return RayScheduler(ledger, slots, options, share, mailbox, entry).run()


@dataclass(frozen=True)
class Share:
    """What a run takes of a node."""

    cpus: int
    gpus: float

    @property
    def device(self) -> str:
        """Where a run computes; Ray shows a process no GPU but its own."""
        return "cuda:0" if self.gpus else "cpu"

    def fit(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """How many runs fit the nodes, as ``ray.nodes`` describes them, that live."""
        return sum(self._on(node["Resources"]) for node in nodes if node["Alive"])

    def _on(self, resources: Mapping[str, float]) -> int:
        by_cpu = resources.get("CPU", 0) / self.cpus
        by_gpu = resources.get("GPU", 0) * round(1 / self.gpus) if self.gpus else math.inf
        return int(min(by_cpu, by_gpu))


def _share(options: Options, nodes: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> Share:
    """What each run takes; raise SpecError where no node has so much, unless the user says that the cluster will grow."""
    having = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = any(resources.get("GPU", 0) >= 1 for resources in having)
    if options.device == "cuda" and not gpus:
        raise SpecError("device=cuda: the Ray cluster has no GPU; type --device auto")
    share = Share(options.threads or 1, 1 / options.jobs_per_gpu if gpus and options.device != "cpu" else 0.0)
    if not share.gpus and any(run.spec.precision == "tf32" for run in runs):
        raise SpecError("precision=tf32: TensorFloat-32 is of CUDA GPUs; the runs are to be made on CPUs")
    if not share.fit(nodes) and options.jobs is None:
        most = max((resources.get("CPU", 0) for resources in having), default=0)
        raise SpecError(
            f"no node of the Ray cluster has room for a run with threads={share.cpus}{' and a GPU' if share.gpus else ''}; "
            f"the largest has {most:g} CPUs; type a smaller --threads, or --jobs N for a cluster that grows when asked for N"
        )
    return share


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.client
    except ImportError as error:
        raise SpecError(f"--executor ray needs Ray ({error}); type pip install 'dynabro[ray]'") from error
    return ray


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect to the cluster, quietly, and leave it again."""
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    address = _found(ray) if address == "auto" else address
    _reach(address)
    try:
        for attempt in range(CONNECT_ATTEMPTS):
            try:
                _connect(ray, address)
                break
            except ConnectionAbortedError:
                if attempt == CONNECT_ATTEMPTS - 1:
                    raise
    except DynabroError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotFoundError(f"no Ray cluster can be used at --address {address} ({first})") from error
    try:
        yield ray
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()


def _found(ray: Any) -> str:
    """What ``auto`` stands for; Ray keeps the address of a cluster that has ended, and would try it for minutes."""
    try:
        address = ray._private.services.get_ray_address_from_environment("auto", None)
    except ConnectionError as error:
        raise NotFoundError("no Ray cluster runs on this machine, and RAY_ADDRESS names none; type --address") from error
    except Exception:  # another version of Ray has no such function, and finds it by itself
        return "auto"
    return str(address)


def _reach(address: str) -> None:
    """Raise NotFoundError where nothing listens at the address: Ray itself tries for long, and may end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        if address.startswith("ray://"):
            raise SpecError(f"address={address} is not legal; type ray://HOST:PORT, where the port is 10001 by default")
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise NotFoundError(f"no Ray cluster answers at --address {address} ({error})") from error


def _connect(ray: Any, address: str) -> None:
    try:
        with _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except SystemExit as error:  # what Ray's own handler makes of SIGTERM
        raise PreemptedError("terminated; no run was in progress; run the command again") from error
    _hush(ray, address)


def _hush(ray: Any, address: str) -> None:
    """Keep from the terminal what Ray has to say of lost nodes and cancelled tasks: pages, which no option stops."""
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    ray._private.worker._worker_logs_enabled = False
    if address.startswith("ray://"):
        with contextlib.suppress(AttributeError):
            stream = ray.util.client.ray.get_context().client_worker.log_client
            stream.log = stream.stdstream = lambda level, msg: None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Put this process's handling of signals back, which connecting changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _mailbox(ray: Any) -> Any:
    """Start the mailbox on the head node, and see whether dynabro is there, and the same."""
    from dynabro_cli.executors.ray_node import Mailbox

    head = {HEAD: 0.001} if HEAD in ray.cluster_resources() else {}
    mailbox = ray.remote(num_cpus=0, resources=head, max_concurrency=10 * MOST_SLOTS)(Mailbox).remote()
    try:
        theirs = _aside(lambda: ray.get(mailbox.version.remote(), timeout=START_SECONDS))
    except ray.exceptions.RayError as error:
        raise RunError(f"the Ray cluster cannot run dynabro; install {__version__} on every node ({_last(error)})") from error
    if theirs != __version__:
        raise DynabroError(f"the Ray cluster has dynabro {theirs}, and here is {__version__}; install one version on all nodes")
    return mailbox


def _aside(call: Callable[[], Any]) -> Any:
    """Call in a thread, and wait in a way that a signal may interrupt, as it may not in Ray's own code."""
    future: Future[Any] = Future()

    def serve() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=serve, daemon=True, name="dynabro ray start").start()
    return future.result()


def _last(error: Exception) -> str:
    """What an error of Ray says, in a line: of what was raised on a node the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
