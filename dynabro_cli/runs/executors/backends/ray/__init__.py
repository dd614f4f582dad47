"""Runs in a Ray cluster, one task each; only this process writes to the database."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynabro_cli import __version__
from dynabro_cli.core.errors import (
    DynabroError,
    NotFoundError,
    PreemptedError,
    RunError,
    SpecError,
    first_line,
    last_line,
)
from dynabro_cli.experiment.resolve import Run
from dynabro_cli.runs.executors._api import ON_CPU, Options, Sharing
from dynabro_cli.runs.executors.backend import Places
from dynabro_cli.runs.executors.backends.ray.shares import share_of
from dynabro_cli.runs.executors.interruptions import USUAL
from dynabro_cli.runs.executors.placement import demands

SIMULATION = "dynabro_cli.runs.executors.worker:simulation"
SYSTEM_RETRIES = 3
"""Least number of retries of a run whose process or node was lost; a checkpoint resets the
count.
"""
MOST_SLOTS = 1000
CONNECT_SECONDS = 10.0
CONNECT_ATTEMPTS = 3
"""Attempts to open a ``ray://`` connection: the server gives up if its own process is slow to
start.
"""
START_SECONDS = 120.0
"""Seconds for the first process in the cluster to start."""
CLIENT_LOG = "ray.util.client.logsclient"
"""The logger that repeats the messages of the server behind a ``ray://`` address."""
HEAD = "node:__internal_head__"
"""Ray's name for the resource of its head node."""
DEVICES = ("auto", "cpu", "cuda")


@contextlib.contextmanager
def opened(
    options: Options, most: int, *, entry: str = SIMULATION
) -> Iterator[Callable[[Sequence[Run]], Places]]:
    """Connect to a cluster, and yield the function that decides on the resources of a run and the
    number of runs at a time.

    A run takes ``threads`` CPUs (1 if None), and 1 / ``jobs_per_gpu`` of a GPU if the device is
    ``cuda``, or ``auto`` with GPUs in the cluster and a model that is not small. ``jobs`` is the
    number of runs submitted at a time, by default the number that fits. ``data_dir`` is a folder on
    the nodes, which need not reach the database. A run whose process or node is lost is retried
    ``SYSTEM_RETRIES`` or ``max_retries`` times, whichever is more, counted from the last
    checkpoint. An existing connection to Ray is used.

    Args:
        options: The options. ``address`` is ``HOST:PORT`` of a cluster that this machine is a node
            of, ``ray://HOST:PORT`` of any, or ``auto``, as by default: ``RAY_ADDRESS``, or the
            cluster that was started on this machine.
        most: Most runs that may be made.
        entry: A function on the nodes, as ``module:name``, that returns the function that makes a
            run.

    Raises:
        SpecError: Ray is not installed, or an option is not legal, or not legal for the cluster;
            nothing has started.
        NotFoundError: There is no cluster at the address.
        RunError: The nodes cannot start a run.
    """
    if options.device not in DEVICES:
        raise SpecError(
            f"device={options.device} is not legal on Ray, which gives out GPUs; legal: "
            f"{', '.join(DEVICES)}"
        )
    with _connected(_import_ray(), options.address or "auto") as ray:
        yield functools.partial(_places, ray, options, entry)


def _places(ray: Any, options: Options, entry: str, runs: Sequence[Run]) -> Places:
    from dynabro_cli.runs.executors.backends.ray.tasks import RayTasks

    demand = demands(options)
    share = share_of(options, ray.nodes(), runs, demand)
    jobs = options.jobs
    options = replace(
        options,
        jobs=jobs or max(1, share.fit(ray.nodes())),
        threads=share.cpus,
        device=share.device,
        max_retries=max(options.max_retries, SYSTEM_RETRIES),
    )
    return Places(
        options,
        [share.device],
        jobs or MOST_SLOTS,
        RayTasks(_mailbox(ray), share, entry, jobs),
        sharing=lambda run: (
            Sharing(True, most=MOST_SLOTS) if share.gpus and demand(run).gpu else ON_CPU
        ),
    )


def _import_ray() -> Any:
    """Import Ray, silenced: its messages about lost nodes and cancelled tasks are pages, and the
    outcomes say what matters.

    Ray reads both variables when it is imported. It prints no line that the pattern matches.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "(?s).*")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        import ray
        import ray.util.client
    except ImportError as error:
        raise SpecError(
            f"--executor ray needs Ray ({error}). Try: pip install 'dynabro[ray]'"
        ) from error
    return ray


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[Any]:
    """Connect to the cluster without output, and disconnect at the end."""
    if ray.is_initialized():
        yield ray
        return
    address, named = _local_address() if address == "auto" else (address, "--address")
    _reach(address, named)
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
        why = first_line(error) or type(error).__name__
        raise NotFoundError(f"no Ray cluster can be used at --address {address} ({why})") from error
    try:
        yield ray
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()


def _local_address() -> tuple[str, str]:
    """Resolve ``auto`` as ``ray.init`` documents it; return the address, and what names it.

    Ray itself would try the address of a cluster that has ended for minutes.
    """
    if address := os.environ.get("RAY_ADDRESS"):
        return address, "RAY_ADDRESS"
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    with contextlib.suppress(OSError):
        return file.read_text().strip() or "auto", str(file)
    return "auto", "--address"


def _reach(address: str, named: str) -> None:
    """Raise NotFoundError if nothing listens at the address: Ray itself tries for long, and may end
    the process.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        if address.startswith("ray://"):
            raise SpecError(
                f"address={address} is not legal. Try: ray://HOST:PORT, where the port is "
                "10001 by default"
            )
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        way = (
            "--address HOST:PORT"
            if named == "--address"
            else "ray start --head, or --address HOST:PORT"
        )
        raise NotFoundError(
            f"no Ray cluster answers at {address}, which {named} names ({error}). Try: {way}"
        ) from error


def _connect(ray: Any, address: str) -> None:
    try:
        with _signals_kept():
            logging.getLogger(CLIENT_LOG).disabled = True
            # Ray sends the working folder to the nodes, which would import its files first; for
            # clients it does not
            job = ray.job_config.JobConfig(_client_job=True)
            ray.init(
                address=address, job_config=job, log_to_driver=False, logging_level=logging.ERROR
            )
    except ConnectionError as error:
        if address != "auto":
            raise
        raise NotFoundError(
            "no Ray cluster runs on this machine, and RAY_ADDRESS names none. Try: --address"
        ) from error
    except SystemExit as error:  # Ray's own handler turns SIGTERM into this
        raise PreemptedError("terminated; no run was in progress; run the command again") from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore this process's signal handlers, which connecting changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in USUAL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _mailbox(ray: Any) -> Any:
    """Start the mailbox on the head node, and check the version of dynabro there."""
    from dynabro_cli.runs.executors.backends.ray.node import Mailbox

    head = {HEAD: 0.001} if HEAD in ray.cluster_resources() else {}
    mailbox = ray.remote(num_cpus=0, resources=head, max_concurrency=10 * MOST_SLOTS)(
        Mailbox
    ).remote()
    try:
        theirs = _aside(lambda: ray.get(mailbox.version.remote(), timeout=START_SECONDS))
    except ray.exceptions.RayError as error:
        why = last_line(error) or type(error).__name__  # the exception that was raised on a node
        raise RunError(
            f"Ray cannot run dynabro ({why}). Try: dynabro {__version__} on every node"
        ) from error
    if theirs != __version__:
        raise DynabroError(
            f"the Ray cluster has dynabro {theirs}, but this is {__version__}; install the "
            "same version on all nodes"
        )
    return mailbox


def _aside(call: Callable[[], Any]) -> Any:
    """Call a function in a thread, and wait for it: a signal can interrupt this wait, but not Ray's
    own code.
    """
    future: Future[Any] = Future()

    def serve() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=serve, daemon=True, name="dynabro ray start").start()
    return future.result()
