"""Idempotency keys and event ids: they identify the answer that a request means, and the place to resume in it.

An answer's id contains the time of its start and a digest of the request. So the id and the request together determine
every byte of the answer, and a frontend that has seen neither can make it again.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..exchange.answer_ids import ANSWER_ID, OWNER_DIGITS, REST_DIGITS, answer_id, created_of
from ..exchange.errors import HttpError

KEY_PATTERN = "^[!-~]{1,255}$"
EVENT_ID_PATTERN = f"^{ANSWER_ID}:(0|[1-9][0-9]{{0,8}})$"
_KEY = re.compile(KEY_PATTERN)
_EVENT_ID = re.compile(EVENT_ID_PATTERN)


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with an idempotency key; the same key of another caller is a different one."""

    caller: bytes
    key: str
    digest: str  # of everything that the answer depends on, except the time of its start
    fingerprint: str = ""  # of the model, which `digest` covers

    def answer_id(self, prefix: str, created: int) -> str:
        """`prefix` with its separator; `created` in seconds since 1970."""
        return answer_id(prefix, created, self.digest)


@dataclass(frozen=True, slots=True)
class EventId:
    """The last event that a client has; `number` counts from 1, and 0 is before the first."""

    answer_id: str
    number: int

    @property
    def created(self) -> int:
        return created_of(self.answer_id)


def request_digest(fingerprint: str, path: str, key: str, body: bytes) -> str:
    """The digest of a request. It includes the model's `fingerprint`, so that no answer resumes with another model."""
    digest = hashlib.sha256()
    for part in (fingerprint.encode(), path.encode(), key.encode(), body):
        digest.update(b"%d:" % len(part) + part)
    return _key_digits(key) + digest.hexdigest()[:REST_DIGITS]


def owner_of_key(key: str, num_frontends: int) -> int | None:
    """The frontend that answers requests with this key; None for an invalid key."""
    return int(_key_digits(key), 16) % num_frontends if _KEY.fullmatch(key) else None


def _key_digits(key: str) -> str:
    return hashlib.sha256(b"key " + key.encode()).hexdigest()[:OWNER_DIGITS]


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """The request's key, if any. Raises HttpError 400 for an invalid one."""
    key = headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise HttpError(400, "Idempotency-Key must have 1 to 255 visible ASCII characters.", "Idempotency-Key")
    return key


def last_event_id(headers: Mapping[str, str]) -> EventId | None:
    """The last event that the client has, if named. Raises HttpError 400 for an invalid id."""
    text = headers.get("last-event-id")
    if text is None:
        return None
    if not _EVENT_ID.fullmatch(text):
        raise HttpError(400, "Last-Event-ID must be the id of an event of a stream of this server.", "Last-Event-ID")
    answer_id, _, number = text.rpartition(":")
    return EventId(answer_id, int(number))
