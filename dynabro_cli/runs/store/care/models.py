"""Files of models: where a run's weights go, and what they replace."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import select

from dynabro_cli.core.events import Weights
from dynabro_cli.core.machine.failpoints import failpoint
from dynabro_cli.core.machine.strangers_files import open_regular
from dynabro_cli.runs.store.care.outputs import FileKind, Output, part_of
from dynabro_cli.runs.store.open.engine import open_read_only
from dynabro_cli.runs.store.open.translation import translated_errors
from dynabro_cli.runs.store.tables import runs

HEADER_BYTES = 16 << 20
"""Largest header of a file that is read for its metadata."""
BLOCK_BYTES = 1 << 20


class SavedModel(NamedTuple):
    """Size in bytes, and SHA-256, of the model that a run saved at its end."""

    size: int
    sha256: str


def saved_models(database: str) -> dict[str, SavedModel]:
    """Return the saved models of a database by run key."""
    columns = select(runs.c.run_key, runs.c.model_size, runs.c.model_sha256).where(
        runs.c.model_size.is_not(None)
    )
    engine = open_read_only(database)
    with translated_errors(database), engine.connect() as connection:
        return {row[0]: SavedModel(row[1], row[2]) for row in connection.execute(columns)}


class ModelFile:
    """The file of one run's model.

    A model of the same run is replaced, so that a resumed run continues to save; any other file
    only with ``force``.

    Args:
        target: The file of the model at the end; models of earlier evaluations go to files beside
            it.
        run_key: The run.
        database: The database of the run, whose files are never replaced.
        force: Replace another file, too.
    """

    def __init__(self, target: Path, run_key: str, database: str, *, force: bool = False) -> None:
        self.target = target
        self._key, self._database, self._force = run_key, database, force

    def at(self, round_: int) -> Path:
        """Return the file of the model after ``round_`` rounds, before the end."""
        return self.target.with_name(f"{self.target.stem}-{round_:06}{self.target.suffix}")

    def check(self) -> None:
        """Find out before the run whether the file can be written.

        Raises:
            CannotWriteError: It cannot, or must not be replaced.
            SpecError: Its name is not UTF-8.
            StorageError: The disk is full.
        """
        output = self._output(self.target)
        with translated_errors(""):
            str(self.target).encode()  # the name is stored with the model
        with output.errors():
            if output.is_stream:  # opened once, when there is a model
                return
            part = part_of(output.checked_path())
            try:
                part.touch(exist_ok=False)
            finally:
                part.unlink(missing_ok=True)

    def is_stream(self) -> bool:
        """Return True for a device or a pipe, which cannot be read again."""
        return self._output(self.target).is_stream

    def problem(self, saved: SavedModel | None) -> str | None:
        """Return why the file is not the model that the run saved at its end, in words; None if it
        is.
        """
        if saved is None:
            return "its model was not saved"
        digest, size = hashlib.sha256(), 0
        try:
            with open_regular(self.target) as file:
                while block := file.read(BLOCK_BYTES):
                    digest.update(block)
                    size += len(block)
        except FileNotFoundError:
            return "its model was not saved to this file, or the file was removed"
        except (OSError, ValueError) as error:
            return f"this file cannot be read ({getattr(error, 'strerror', None) or error})"
        if size != saved.size:
            return f"this file differs from its saved model: {size:,} bytes, not {saved.size:,}"
        return (
            None if digest.hexdigest() == saved.sha256 else "this file differs from its saved model"
        )

    def __call__(self, event: Weights) -> dict[str, Any]:
        """Write a model completely, or not at all; return what the run's row has about it.

        Raises:
            CannotWriteError: The file cannot be written, or must not be replaced.
            StorageError: The disk is full.
        """
        with self._output(self.target if event.final else self.at(event.round)).writing() as file:
            file.write(event.data)
        failpoint("after-model")
        digest = hashlib.sha256(event.data).hexdigest()
        return {
            "model_file": self.target.name,
            "model_size": len(event.data),
            "model_sha256": digest,
        }

    def _output(self, target: Path) -> Output:
        kind = FileKind(
            "a model of this run", lambda path: metadata(path).get("run_key") == self._key
        )
        return Output(target, kind, self._database, force=self._force)


class ModelFolder:
    """A folder with the models of many runs, each in a file named by the run's key.

    Args:
        folder: The folder.
        database: The database of the runs, whose files are never replaced.
    """

    def __init__(self, folder: Path, database: str) -> None:
        self._folder, self._database = folder, database

    def of(self, run_key: str) -> ModelFile:
        """Return the file of a run's model."""
        return ModelFile(self._folder / f"{run_key}.safetensors", run_key, self._database)

    def check(self) -> None:
        """Create the folder, and find out if it can be written.

        Raises:
            CannotWriteError: It cannot.
            StorageError: The disk is full.
        """
        probe = self.of("probe")
        with Output(
            self._folder, FileKind("a folder", lambda path: False), self._database
        ).errors():
            self._folder.mkdir(parents=True, exist_ok=True)
        probe.check()

    def __call__(self, event: Weights) -> dict[str, Any]:
        """Write the model of an event, as ``ModelFile`` does."""
        return self.of(event.run_key)(event)


def metadata(path: Path) -> dict[str, str]:
    """Return the text that a safetensors file has about its tensors; empty if the file is another
    one or cannot be read.
    """
    try:
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= HEADER_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    about = header.get("__metadata__") if isinstance(header, dict) else None
    return {str(name): str(text) for name, text in about.items()} if isinstance(about, dict) else {}
