"""Origin of a run: the user's checkout with its changes; and the user's words on it, its tags and
its note.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, RowMapping, bindparam, delete, insert, select, update

from dynabro_cli.core.errors import DatabaseError, NotFoundError, SpecError
from dynabro_cli.core.limits import MOST_DIFF, MOST_NOTE, MOST_TAGS
from dynabro_cli.runs.store.open.translation import shown, translated_errors
from dynabro_cli.runs.store.tables import diffs, runs

TAG = r"[\w.:/+-]{1,64}"
BROKEN_DIFF = (
    "the changes of its checkout cannot be unpacked, or do not have the SHA-256 that the run names"
)


class Origin(NamedTuple):
    """Columns that all runs of a command share.

    Attributes:
        commit: Git commit of the folder that the command was started in.
        diff: Output of ``git diff``; empty if nothing has changed.
        tags: Tags; none keeps the tags of a run that is repeated.
        note: A note; None keeps the note of a run that is repeated.
    """

    commit: str | None = None
    diff: bytes = b""
    tags: tuple[str, ...] = ()
    note: str | None = None

    def store(
        self, connection: Connection, before: Mapping[str, Any] | RowMapping | None
    ) -> dict[str, Any]:
        """Return the columns of a run that starts, and store the changes of the checkout if they
        are not stored yet.

        Args:
            connection: The transaction that stores the run's row.
            before: The row that the run replaces, or None.
        """
        digest = hashlib.sha256(self.diff).hexdigest() if self.diff else None
        if (
            digest is not None
            and connection.execute(select(diffs.c.sha256).where(diffs.c.sha256 == digest)).first()
            is None
        ):
            connection.execute(
                insert(diffs).values(sha256=digest, content=zlib.compress(self.diff, 9))
            )
            warnings.warn(
                f"the changes of this checkout ({len(self.diff):,} bytes of 'git diff HEAD', "
                "with any passwords) are stored, "
                "and copies of the database have them. Try: DYNABRO_GIT_DIFF=off",
                stacklevel=2,
            )
        words = {"tags": as_json(self.tags), "note": self.note}
        kept = {
            name: value if value is not None or before is None else before[name]
            for name, value in words.items()
        }
        return {"git_commit": self.commit, "git_diff": digest} | kept


def as_json(tags: Iterable[str]) -> str | None:
    """Return tags as they are stored: each once, sorted; raise SpecError if there are too many."""
    words = sorted(set(tags))
    if len(words) > MOST_TAGS:
        raise SpecError(
            f"tags: a run would have {len(words):,}, and {MOST_TAGS:,} are the most. Try: "
            "--note for a text"
        )
    return json.dumps(words, ensure_ascii=False) if words else None


def read_tags(stored: object) -> list[str]:
    """Return stored tags; none if they are not a list of texts."""
    try:
        value = json.loads(stored) if isinstance(stored, str) else []
    except (ValueError, RecursionError):
        return []
    return [tag for tag in value if isinstance(tag, str)] if isinstance(value, list) else []


def words_of(row: Mapping[str, Any]) -> str:
    """Return the tags and the note of a run in a line; a frame of pandas has NaN for NULL."""
    note = row["note"] if isinstance(row["note"], str) else ""
    return ": ".join(filter(None, (" ".join(read_tags(row["tags"])), note)))


def check_words(tags: Sequence[str], note: str | None) -> tuple[str, ...]:
    """Return the tags; raise SpecError if one of them, or the note, is not legal."""
    for tag in tags:
        if not re.fullmatch(TAG, tag):
            raise SpecError(
                f"tag={tag}: a tag has 1 to 64 letters, digits and . : / + - _. Try: --note "
                "for a text"
            )
    if note is not None and len(note) > MOST_NOTE:
        raise SpecError(
            f"note: it has {len(note)} characters, and {MOST_NOTE} are the most. Try: a shorter one"
        )
    as_json(tags)
    return tuple(tags)


def set_words(
    engine: Engine, ids: Sequence[int], add: Sequence[str], remove: Sequence[str], note: str | None
) -> None:
    """Change the tags of runs, and their note unless it is None; an empty note removes it."""
    with translated_errors(engine.url), engine.begin() as connection:
        stored = {row.id: row.tags for row in connection.execute(select(runs.c.id, runs.c.tags))}
        values: list[dict[str, Any]] = [
            {"number": number, "words": as_json({*read_tags(stored[number]), *add} - {*remove})}
            for number in ids
            if number in stored
        ]
        change = update(runs).where(runs.c.id == bindparam("number"))
        if add or remove:
            connection.execute(change.values(tags=bindparam("words")), values)
        if note is not None:
            connection.execute(
                change.values(note=note or None), [{"number": value["number"]} for value in values]
            )


def diff_of(engine: Engine, row: Mapping[str, Any]) -> bytes:
    """Return the changes of the checkout in which a run was started.

    Raises:
        NotFoundError: None are stored.
        DatabaseError: They are not what the run names.
    """
    with translated_errors(engine.url), engine.connect() as connection:
        content = connection.execute(
            select(diffs.c.content).where(diffs.c.sha256 == row["git_diff"])
        ).scalar()
    if content is None:
        why = (
            "the checkout had none, or too many"
            if row["git_commit"]
            else "it was not started in a checkout"
        )
        raise NotFoundError(
            f"run {row['id']}: no changes are stored, because {why}. Try: dynabro show {row['id']}"
        )
    changes = _unpacked(content, row["git_diff"])
    if changes is None:
        name = shown(engine.url)
        raise DatabaseError(
            f"{name}: run {row['id']}: {BROKEN_DIFF}. Try: dynabro db check --db {name}"
        )
    return changes


def _unpacked(content: object, digest: str) -> bytes | None:
    """Return the text of stored changes; None if they cannot be unpacked, or do not have the
    digest.
    """
    try:
        changes = (
            zlib.decompressobj().decompress(content, MOST_DIFF)
            if isinstance(content, bytes)
            else b""
        )
    except zlib.error:
        return None
    return changes if hashlib.sha256(changes).hexdigest() == digest else None


def broken_diffs(connection: Connection) -> dict[int, str]:
    """Return the runs whose changes are not what they name, by id, with the problem."""
    stored = connection.execute(select(diffs.c.sha256, diffs.c.content))
    broken = {digest for digest, content in stored if _unpacked(content, digest) is None}
    named = connection.execute(
        select(runs.c.id, runs.c.git_diff).where(runs.c.git_diff.is_not(None))
    )
    return {number: BROKEN_DIFF for number, digest in named if digest in broken}


def copy_diff(reading: Connection, connection: Connection, digest: str | None) -> None:
    """Copy the changes that a merged run names into another database."""
    if (
        digest is None
        or connection.execute(select(diffs.c.sha256).where(diffs.c.sha256 == digest)).first()
        is not None
    ):
        return
    content = reading.execute(select(diffs.c.content).where(diffs.c.sha256 == digest)).scalar()
    if isinstance(content, bytes):
        connection.execute(insert(diffs).values(sha256=digest, content=content))


def remove_unused_diffs(connection: Connection) -> None:
    """Remove the changes that no run names any more."""
    used = select(runs.c.git_diff).where(runs.c.git_diff.is_not(None))
    connection.execute(delete(diffs).where(diffs.c.sha256.not_in(used)))
