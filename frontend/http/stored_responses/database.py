"""Stored responses in an SQLite file, which all frontends of a server share and which outlives them.

The file is in write-ahead mode without a sync at each commit: commits survive the loss of any process, and all but the
latest survive a failure of the machine. Above the size limit the caller with the most bytes loses its oldest response.
"""

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

from .schema import ADDED, SCHEMA, VERSION, statements

FILE = "responses.sqlite3"
ENTRY_BYTES = 1024  # a row without its texts
BUSY_S = 10.0
DAY_S = 86400

_COLUMNS = "caller, id, created, previous, input, response, key, digest, job, has_events, fingerprint, isolations"


@dataclass(frozen=True, slots=True)
class Row:
    """One response. `job`: the request, until the response has ended; `key`, `digest`: of a request with a key.

    `fingerprint`: of the model, which `digest` covers. `isolations`: how often it was computed alone, without an end.
    """

    caller: bytes
    id: str
    created: int  # seconds since 1970
    previous: str | None
    input: bytes  # JSON, a list of items
    response: bytes  # JSON, as clients see it
    key: str | None = None
    digest: str | None = None
    job: bytes | None = None
    has_events: int = 0  # 1: its stream is stored too
    fingerprint: str | None = None
    isolations: int = 0

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.input) + len(self.response) + len(self.job or b"")


Items = Sequence[tuple[str, bytes]]  # ids and JSON


class Database:
    """Used by one thread at a time. Methods raise sqlite3.Error when the file cannot be read or written."""

    def __init__(self, folder: str, max_bytes: int, max_days: int):
        """Raises ConfigError for an unusable folder or file."""
        self._max_bytes, self._max_age_s = max_bytes, max_days * DAY_S
        path = Path(folder) / FILE
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            # SQLite does not wait when two processes change the journal mode of a new file: one fails as locked.
            with _locked(path.parent):
                self._connection = sqlite3.connect(path, BUSY_S, isolation_level=None, check_same_thread=False)
                self._connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
                self._connection.execute("PRAGMA foreign_keys = ON")
                version = self._create()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"--store-responses {folder}: {path} cannot be used: {error}") from None
        if version != VERSION:
            raise ConfigError(
                f"--store-responses {folder}: {path} has the format {version}, this server writes {VERSION}; give "
                "another folder, or remove the file"
            )
        self.secret: bytes = self._connection.execute("SELECT secret FROM facts").fetchone()[0]

    def close(self) -> None:
        self._connection.close()

    def add(self, row: Row, items: Items) -> None:
        """Add a response or replace an earlier form of it; removes others above the limits of size and age."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM responses WHERE caller = ? AND id = ?", (row.caller, row.id))
            values = (row.caller, row.id, row.created, row.previous, row.input, row.response, row.key, row.digest)
            made = connection.execute(
                f"INSERT INTO responses ({_COLUMNS}, size) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, row.job, row.has_events, row.fingerprint, row.isolations, row.size + _size(items)),
            )
            self._add_items(row.caller, made.lastrowid, items)
            connection.execute("DELETE FROM responses WHERE created < ?", (time.time() - self._max_age_s,))
            self._shrink(made.lastrowid)

    def finish(
        self, caller: bytes, answer_id: str, response: bytes, items: Items, first: int, events: Sequence[bytes]
    ) -> None:
        """Store the end of a job, and its last events like `append_events`; does nothing when it has ended already."""
        with self._transaction() as connection:
            if (number := self._job(caller, answer_id)) is None:
                return
            connection.execute(
                "UPDATE responses SET response = ?, job = NULL, size = size + ? - length(response) - length(job) "
                "WHERE number = ?",
                (response, len(response) + _size(items), number),
            )
            self._add_items(caller, number, items)
            self._add_events(number, first, events)
            self._shrink(number)

    def append_events(self, caller: bytes, answer_id: str, first: int, events: Sequence[bytes]) -> None:
        """Append the events after the first `first`; those stored already stay."""
        with self._transaction():
            if (number := self._job(caller, answer_id)) is not None:
                self._add_events(number, first, events)

    def set_isolations(self, caller: bytes, answer_id: str, count: int) -> None:
        values = count, caller, answer_id
        self._connection.execute("UPDATE responses SET isolations = ? WHERE caller = ? AND id = ?", values)

    def events(self, caller: bytes, answer_id: str, after: int) -> list[bytes]:
        """Some of the events after the first `after`; empty when there are no more."""
        found = self._connection.execute(
            "SELECT first, events FROM events JOIN responses ON events.response = number "
            "WHERE caller = ? AND id = ? AND first <= ? ORDER BY first DESC LIMIT 1",
            (caller, answer_id, after),
        ).fetchone()
        return [] if found is None else _split(found[1])[after - found[0] :]

    def num_events(self, caller: bytes, answer_id: str) -> int:
        (count,) = self._connection.execute(
            "SELECT coalesce(max(first + count), 0) FROM events JOIN responses ON events.response = number "
            "WHERE caller = ? AND id = ?",
            (caller, answer_id),
        ).fetchone()
        return int(count)

    def row(self, caller: bytes, answer_id: str) -> Row | None:
        return self._row("caller = ? AND id = ?", caller, answer_id)

    def row_of_key(self, caller: bytes, key: str) -> Row | None:
        return self._row("caller = ? AND key = ?", caller, key)

    def item(self, caller: bytes, item_id: str) -> bytes | None:
        found = self._connection.execute(
            "SELECT item FROM items WHERE caller = ? AND id = ?", (caller, item_id)
        ).fetchone()
        return None if found is None else found[0]

    def jobs(self) -> list[Row]:
        """Responses that have not ended, the oldest first."""
        found = self._connection.execute(f"SELECT {_COLUMNS} FROM responses WHERE job IS NOT NULL ORDER BY number")
        return [Row(*values) for values in found]

    def delete(self, caller: bytes, answer_id: str) -> None:
        self._connection.execute("DELETE FROM responses WHERE caller = ? AND id = ?", (caller, answer_id))

    def num_bytes(self) -> int:
        return int(self._connection.execute("SELECT coalesce(sum(bytes), 0) FROM held").fetchone()[0])

    def _create(self) -> int:
        """The format version of the file; creates the tables in a new file."""
        if (version := self._version()) and not self._missing():
            return version  # without a transaction, which would wait for another program's
        with self._transaction() as connection:
            if not self._version():
                for statement in (*statements(SCHEMA), f"PRAGMA user_version = {VERSION}"):
                    connection.execute(statement)
                connection.execute("INSERT INTO facts VALUES (?)", (secrets.token_bytes(32),))
            for column in self._missing():
                connection.execute(f"ALTER TABLE responses ADD COLUMN {column} {ADDED[column]}")
        return self._version()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _missing(self) -> list[str]:
        found = {name for _, name, *_ in self._connection.execute("PRAGMA table_info(responses)")}
        return [column for column in ADDED if column not in found]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            yield self._connection

    def _row(self, where: str, *values: object) -> Row | None:
        found = self._connection.execute(f"SELECT {_COLUMNS} FROM responses WHERE {where}", values).fetchone()
        return None if found is None else Row(*found)

    def _job(self, caller: bytes, answer_id: str) -> int | None:
        """The number of a response that has not ended."""
        found = self._connection.execute(
            "SELECT number FROM responses WHERE caller = ? AND id = ? AND job IS NOT NULL", (caller, answer_id)
        ).fetchone()
        return None if found is None else found[0]

    def _add_items(self, caller: bytes, number: int | None, items: Items) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", [(caller, id_, number, item) for id_, item in items]
        )

    def _add_events(self, number: int, first: int, events: Sequence[bytes]) -> None:
        (count,) = self._connection.execute(
            "SELECT coalesce(max(first + count), 0) FROM events WHERE response = ?", (number,)
        ).fetchone()
        if new := events[count - first :]:
            joined = b"".join(new)
            self._connection.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (number, count, len(new), joined))
            self._connection.execute("UPDATE responses SET size = size + ? WHERE number = ?", (len(joined), number))

    def _shrink(self, spared: int | None) -> None:
        """Remove responses down to the size limit; spares the one just written and those that have not ended."""
        while self.num_bytes() > self._max_bytes:
            oldest = self._connection.execute(
                "SELECT number FROM responses JOIN held USING (caller) WHERE job IS NULL AND number != ? "
                "ORDER BY bytes DESC, number LIMIT 1",
                (spared,),
            ).fetchone()
            if oldest is None:
                return
            self._connection.execute("DELETE FROM responses WHERE number = ?", oldest)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Context for one process at a time; a kill of the process releases the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _split(joined: bytes) -> list[bytes]:
    """Split joined server-sent events."""
    return [event + b"\n\n" for event in joined.split(b"\n\n")[:-1]]


def _size(items: Items) -> int:
    return sum(len(id_) + len(item) for id_, item in items)
