"""The tables of the file of stored responses."""

import sqlite3
from collections.abc import Iterator

VERSION = 1

SCHEMA = """
CREATE TABLE facts (secret BLOB NOT NULL);
CREATE TABLE responses (
    number INTEGER PRIMARY KEY,
    caller BLOB NOT NULL,
    id TEXT NOT NULL,
    created INTEGER NOT NULL,
    size INTEGER NOT NULL,
    previous TEXT,
    key TEXT,
    digest TEXT,
    input BLOB NOT NULL,
    response BLOB NOT NULL,
    job BLOB,
    has_events INTEGER NOT NULL,
    fingerprint TEXT,
    isolations INTEGER NOT NULL DEFAULT 0,
    UNIQUE (caller, id),
    UNIQUE (caller, key)
);
CREATE INDEX ages ON responses (created);
CREATE INDEX jobs ON responses (id) WHERE job IS NOT NULL;
CREATE TABLE items (
    caller BLOB NOT NULL,
    id TEXT NOT NULL,
    response INTEGER NOT NULL REFERENCES responses (number) ON DELETE CASCADE,
    item BLOB NOT NULL,
    PRIMARY KEY (caller, id)
);
CREATE INDEX items_of ON items (response);
CREATE TABLE events (
    response INTEGER NOT NULL REFERENCES responses (number) ON DELETE CASCADE,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    events BLOB NOT NULL,
    PRIMARY KEY (response, first)
);
CREATE TABLE held (caller BLOB PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER added AFTER INSERT ON responses BEGIN
    INSERT INTO held VALUES (new.caller, new.size) ON CONFLICT DO UPDATE SET bytes = bytes + new.size;
END;
CREATE TRIGGER resized AFTER UPDATE OF size ON responses BEGIN
    UPDATE held SET bytes = bytes + new.size - old.size WHERE caller = new.caller;
END;
CREATE TRIGGER removed AFTER DELETE ON responses BEGIN
    UPDATE held SET bytes = bytes - old.size WHERE caller = old.caller;
    DELETE FROM held WHERE caller = old.caller AND bytes <= 0;
END;
"""

# Columns that a file of an earlier version may lack, and that an earlier server ignores.
ADDED = {"fingerprint": "TEXT", "isolations": "INTEGER NOT NULL DEFAULT 0"}


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would end the transaction."""
    lines = list[str]()
    for line in script.strip().splitlines():
        lines.append(line)
        if sqlite3.complete_statement("\n".join(lines)):
            yield "\n".join(lines)
            lines.clear()
