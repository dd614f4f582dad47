"""Fixtures for tests in several folders."""

from __future__ import annotations

import faulthandler
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dynabro_cli.core.machine.cores import cores, spin_little

# before torch is loaded: processes that wait in a loop take the cores from each other
spin_little()

import torch  # noqa: E402

from dynabro_cli.core.machine import devices, mps  # noqa: E402
from dynabro_cli.runs.executors import placement  # noqa: E402
from dynabro_cli.runs.store.open.engine import open_for_writing  # noqa: E402
from tests.core.machine.fake_mps import Service  # noqa: E402
from tests.postgres import empty_database  # noqa: E402

# the processes of tests share the cores; tests of threads set their number
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    torch.set_num_threads(max(1, cores() // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))


CRASHES = "dynabro-crash-{}-"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let a process of tests that crashes leave the stacks of its threads in a file."""
    if hasattr(config, "workerinput"):
        prefix = CRASHES.format(config.workerinput["testrunuid"])
        faulthandler.enable(tempfile.mkstemp(prefix=prefix)[0])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what processes of tests left when they crashed."""
    session = config.pluginmanager.get_plugin("dsession")
    uid = getattr(getattr(session, "nodemanager", None), "testrunuid", None)
    for file in Path(tempfile.gettempdir()).glob(CRASHES.format(uid) + "*"):
        if lines := file.read_text().splitlines():
            terminalreporter.section("a process of tests crashed")
            terminalreporter.write_line("\n".join(lines[:40]))
        file.unlink()


def pytest_collection_finish() -> None:
    """Keep all that is imported and collected out of the searches for unused objects, which last a
    second without this.
    """
    gc.freeze()


@pytest.fixture
def postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty PostgreSQL database; files that would lie beside a database file go to a
    temporary folder.
    """
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    with empty_database() as url:
        yield url


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL database with tables and without rows, to be copied: making the
    tables takes longer.
    """
    with empty_database() as url:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DYNABRO_STATE", str(tmp_path_factory.mktemp("tables")))
            open_for_writing(url).dispose()
        yield url


@pytest.fixture
def postgres_with_tables(
    tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Like ``postgres``, with the tables of this version."""
    monkeypatch.setenv("DYNABRO_STATE", str(tmp_path / "state"))
    with empty_database(like=tables) as url:
        yield url


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a machine that seems to have GPUs, on which nothing can be computed."""

    def make(gpus: int = 1, cores: int = 16, gigabytes: float = 140) -> None:
        monkeypatch.setattr(devices, "gpu_driver", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
        monkeypatch.setattr(devices, "cards", list)
        monkeypatch.setattr(placement, "gpu_memory", lambda _: gigabytes * 1e9)
        monkeypatch.setattr(placement, "cores", lambda: cores)

    return make


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A control program of CUDA's multi-process service, the only one."""
    made = Service(tmp_path / "mps")
    monkeypatch.delenv(mps.FOLDER, raising=False)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.end()


@pytest.fixture
def same_threads_after() -> Iterator[None]:
    """Set torch's number of threads as before when the test ends."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
