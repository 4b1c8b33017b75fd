"""The database of stored responses: its limits of size and age, and its file."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from paged_serve.frontend.http.stored_responses import database as database_module
from paged_serve.frontend.http.stored_responses.database import FILE, Database, Row
from paged_serve.protocol.errors import ConfigError


def row(caller: bytes, number: int, size: int) -> Row:
    return Row(caller, f"resp_{number}", 2**33 + number, None, b"[]", b"x" * size)


def test_the_oldest_responses_of_the_largest_caller_are_removed_first(tmp_path):
    database = Database(str(tmp_path), 100_000, 30)
    database.add(row(b"small", 0, 5_000), [("item", b"1")])
    for number in range(1, 40):
        database.add(row(b"large", number, 10_000), [])
        assert database.num_bytes() <= 100_000
    assert database.row(b"small", "resp_0") is not None
    assert [database.row(b"large", f"resp_{number}") is not None for number in (1, 31, 32, 39)] == [0, 0, 1, 1]
    database.add(row(b"small", 50, 99_000), [])
    assert database.row(b"large", "resp_39") is None
    assert database.item(b"small", "item") is None, "it is deleted with its response"
    held = sum(size for (size,) in database._connection.execute("SELECT size FROM responses"))
    assert database.num_bytes() == held


def test_old_responses_are_removed_and_events_are_stored_once(tmp_path):
    database = Database(str(tmp_path), 1 << 20, 30)
    old = Row(b"", "resp_old", 1000, None, b"[]", b"{}")
    database.add(old, [])
    job = Row(b"", "resp_new", 2**33, None, b"[]", b"{}", job=b"job", has_events=1)
    database.add(job, [])
    assert database.row(b"", "resp_old") is None
    events = [b"data: %d\n\n" % i for i in range(10)]
    database.append_events(b"", "resp_new", 0, events[:4])
    database.append_events(b"", "resp_new", 2, events[2:7])
    database.finish(b"", "resp_new", b"whole", [], 7, events[7:])
    database.finish(b"", "resp_new", b"twice", [], 7, events[7:])
    found = []
    while more := database.events(b"", "resp_new", len(found)):
        found += more
    assert found == events
    assert database.row(b"", "resp_new").response == b"whole"
    assert database.jobs() == []


@pytest.mark.parametrize("_", range(20))
def test_several_frontends_create_the_file_at_once(tmp_path, _):
    together = threading.Barrier(4)

    def open_file() -> bytes:
        together.wait()
        database = Database(str(tmp_path), 1 << 20, 30)
        database.close()
        return database.secret

    with ThreadPoolExecutor(together.parties) as pool:
        opened = [pool.submit(open_file) for _ in range(together.parties)]
    assert len({each.result() for each in opened}) == 1


def test_a_file_that_another_program_has_locked_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(database_module, "BUSY_S", 0.01)
    first = Database(str(tmp_path), 1 << 20, 30)
    first.add(row(b"", 1, 3), [])
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        second = Database(str(tmp_path), 1 << 20, 30)
        assert second.row(b"", "resp_1") == first.row(b"", "resp_1")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            second.add(row(b"", 2, 3), [])


def test_a_file_without_fingerprints_and_isolations_is_used(tmp_path):
    database = Database(str(tmp_path), 1 << 20, 30)
    database.add(row(b"", 1, 3), [])
    for column in ("fingerprint", "isolations"):
        database._connection.execute(f"ALTER TABLE responses DROP COLUMN {column}")
    database.close()
    database = Database(str(tmp_path), 1 << 20, 30)
    database.add(replace(row(b"", 2, 3), fingerprint="f"), [])
    assert [database.row(b"", f"resp_{number}").fingerprint for number in (1, 2)] == [None, "f"]
    assert database.row(b"", "resp_1").isolations == 0
    database.set_isolations(b"", "resp_1", 1)
    assert database.row(b"", "resp_1").isolations == 1
    database.close()
    assert Database(str(tmp_path), 1 << 20, 30).row(b"", "resp_2").fingerprint == "f"


def test_a_file_of_another_version_is_refused(tmp_path):
    Database(str(tmp_path), 1 << 20, 30).close()
    connection = sqlite3.connect(tmp_path / "responses.sqlite3")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(ConfigError, match="format 9"):
        Database(str(tmp_path), 1 << 20, 30)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--store-responses"):
        Database(str(tmp_path / "file"), 1 << 20, 30)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "responses.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        Database(str(tmp_path / "bad"), 1 << 20, 30)
