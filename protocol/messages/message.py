"""What every message shares: the base Struct, token ids as bytes, the handshake, and the hash of all definitions.

Messages travel positionally (`array_like`), which is safe because all processes come from one checkout; the
handshake compares `schema_hash`, so a mixed start fails at once instead of misreading a field.
"""

import hashlib
import sys
from array import array
from collections.abc import Collection, Iterable, Sized
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from ..errors import InvalidRequest

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 4 << 20  # one message; a prompt of 1M tokens
MAX_STEP_FRAME_BYTES = 64 << 20  # core <-> worker: many prompts admitted in one step, or many full prompt logprobs
MAX_TOKENS_PER_MESSAGE = 1 << 20
MAX_TOKEN_ID = 2**31 - 1
MAX_ROWS = 65536  # requests that a worker computes at once

_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")  # of a Meta

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Step = Annotated[int, Meta(ge=0, le=2**62)]
Epoch = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # counts restarts of the process or group at the link's other end
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]
ShortText = Annotated[str, Meta(max_length=256)]
MAX_LONG_TEXT = 16384  # characters; a sender truncates foreign text
LongText = Annotated[str, Meta(max_length=MAX_LONG_TEXT)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Weight = Annotated[float, Meta(ge=0.001, le=1000.0)]  # of a tenant, relative to the others
TokenIds = Annotated[tuple[TokenId, ...], Meta(max_length=1024)]  # a few; long lists travel as TokenBytes
TokenBytes = Annotated[bytes, Meta(max_length=4 * MAX_TOKENS_PER_MESSAGE)]  # little-endian int32
Bytes = Annotated[bytes, Meta(max_length=MAX_STEP_FRAME_BYTES)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of everything that crosses a process border."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A part of a message."""


class Hello(Message, frozen=True):
    """First message on every link, sent by the side that connects. Answered by Welcome or Refused."""

    protocol_version: Count
    schema_hash: ShortText
    role: ShortText  # "client", "frontend", "engine-core", "worker"
    index: Count  # worker: tensor-parallel rank
    epoch: Epoch  # the sender's incarnation
    pid: Count


class Refused(Message, frozen=True):
    """The handshake failed; the link is dead. `reason` is readable text."""

    reason: LongText
    stale: bool = False  # the sender's epoch is over, an ordinary loss; any other refusal would repeat itself


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token or block ids as little-endian int32 bytes: 33 times cheaper to decode than a list."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> "array[int]":
    """Inverse of `pack_ids`. Raises ValueError when the length is not a multiple of 4."""
    ids = array("i")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def pack_int64(ids: Iterable[int]) -> bytes:
    """Stream ids as little-endian int64 bytes."""
    packed = array("q", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_int64(data: bytes) -> "array[int]":
    ids = array("q")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def check_int32(*columns: bytes) -> None:
    """Raise ValueError when a column is not a whole number of 4-byte values (int32 or float32)."""
    for column in columns:
        if len(column) % 4:
            raise ValueError(f"{len(column)} bytes are not a whole number of 4-byte values")


def check_logprobs(token_ids: bytes, logprobs: bytes, rows: int) -> None:
    """Raise ValueError unless both are [rows, k + 1] columns of 4-byte numbers with one k."""
    if len(token_ids) != len(logprobs) or (len(token_ids) % (4 * rows) if rows else token_ids):
        raise ValueError(f"{len(token_ids)} bytes of token ids, {len(logprobs)} of logprobs for {rows} rows")


def has_half_pair(text: str) -> bool:
    """Whether UTF-8 cannot carry the text, because a string of Python may have half of a surrogate pair."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def plain(value: Any) -> int | float | str:
    """A number or text of a subclass, such as those of numpy, as msgspec encodes it. Raises TypeError for others."""
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r:.100} is of the class {type(value).__name__}, which no message can carry")


def struct_types(*unions: Any) -> list[type[msgspec.Struct]]:
    """Every Struct that a message of `unions` may contain, itself included, in order of first mention."""
    found: dict[type[msgspec.Struct], Any] = {}
    for union in unions:
        _describe(union, found)
    return list(found)


def schema_hash(*unions: Any) -> str:
    """16 hex digits that change whenever any message definition in `unions` changes.

    They are computed anew in each process, in 5 ms; the JSON schemas of msgspec would take 30.
    """
    structs: dict[type[msgspec.Struct], Any] = {}
    definitions = [_describe(union, structs) for union in unions], *structs.values()
    return hashlib.sha256(msgspec.json.encode(definitions, order="sorted")).hexdigest()[:16]


def _describe(annotation: Any, structs: dict[type[msgspec.Struct], Any]) -> Any:
    """What an annotation accepts, as JSON has it. Definitions of structs, and of those in them, are added to `structs`.

    Nothing depends on the process: typing caches annotations by equality, so the order of imports decides between
    1000.0 and 1000.
    """
    if isinstance(annotation, msgspec.Meta):
        return [(name, _whole(getattr(annotation, name))) for name in _BOUNDS]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        if annotation not in structs:
            structs[annotation] = ()  # first, as it may contain itself
            structs[annotation] = _definition(annotation, structs)
        return annotation.__qualname__
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation.__qualname__, [(member.name, member.value) for member in annotation]
    if parts := get_args(annotation):
        return str(get_origin(annotation)), [_describe(part, structs) for part in parts]
    return repr(annotation)


def _definition(cls: type[msgspec.Struct], structs: dict[type[msgspec.Struct], Any]) -> Any:
    kept = msgspec.structs.fields(cls)
    fields = [(field.name, _describe(field.type, structs), _default(field)) for field in kept]
    return cls.__qualname__, cls.__struct_config__.tag, cls.__struct_config__.array_like, fields


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory.__qualname__
    return () if field.default is msgspec.NODEFAULT else (_whole(field.default),)


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def check_length(field: str, entries: Sized, limit: int) -> None:
    if len(entries) > limit:
        raise InvalidRequest(f"{field} has {len(entries)} entries; at most {limit} are allowed", field)


def check_token_ids(field: str, ids: Collection[Any], limit: int) -> None:
    check_length(field, ids, limit)
    # Whole lists at C speed: a list may name a whole vocabulary, and the engine core checks it in its loop.
    if ids and (set(map(type, ids)) != {int} or not 0 <= min(ids) <= max(ids) <= MAX_TOKEN_ID):
        wrong = next(token for token in ids if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID)
        raise InvalidRequest(f"{field} names {wrong!r:.100}, which is not a token id", field)


def check_strings(field: str, texts: tuple[Any, ...], limit: int, max_chars: int) -> None:
    check_length(field, texts, limit)
    if not all(isinstance(text, str) and 0 < len(text) <= max_chars for text in texts):
        raise InvalidRequest(f"{field} entries must be strings of 1 to {max_chars} characters", field)
    if any(map(has_half_pair, texts)):
        raise InvalidRequest(f"{field} has half of a surrogate pair, which is not valid text", field)
