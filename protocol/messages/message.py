"""What every message shares: the base Struct, token ids as bytes, the handshake, and the hash of all definitions.

Messages travel positionally (`array_like`), which is safe because all processes come from one checkout; the
handshake compares `schema_hash`, so a mixed start fails at once instead of misreading a field.
"""

import hashlib
import sys
from array import array
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, inspect

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 4 << 20  # one message; a prompt of 1M tokens
MAX_STEP_FRAME_BYTES = 64 << 20  # core <-> worker: many prompts admitted in one step, or many full prompt logprobs
MAX_TOKENS_PER_MESSAGE = 1 << 20
MAX_TOKEN_ID = 2**31 - 1
MAX_ROWS = 65536  # requests that a worker computes at once

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
    found: dict[type[msgspec.Struct], None] = {}

    def walk(node: Any) -> None:
        if isinstance(node, inspect.StructType):
            if node.cls not in found:
                found[node.cls] = None
                for field in node.fields:
                    walk(field.type)
            return
        for name in ("types", "item_types"):
            for part in getattr(node, name, ()):
                walk(part)
        for name in ("item_type", "key_type", "value_type"):
            if hasattr(node, name):
                walk(getattr(node, name))

    for node in inspect.multi_type_info(unions):
        walk(node)
    return list(found)


def _normalized(node: Any) -> Any:
    """Remove from a schema what depends on the process: its docstrings, which `python -OO` lacks, and 1000.0 for 1000.

    typing caches annotations by equality, so the order of imports decides between the two numbers.
    """
    if isinstance(node, dict):
        is_text = isinstance(node.get("description"), str)  # otherwise it is a field of this name
        return {key: _normalized(value) for key, value in node.items() if not (is_text and key == "description")}
    if isinstance(node, list | tuple):
        return [_normalized(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def schema_hash(*unions: Any) -> str:
    """16 hex digits that change whenever any message definition in `unions` changes."""
    definitions = [_normalized(part) for part in msgspec.json.schema_components(unions)]
    # The schema of a positional struct lacks field names; without them, two swapped fields of one type look the same.
    names = [(cls.__qualname__, cls.__struct_fields__) for cls in struct_types(*unions)]
    return hashlib.sha256(msgspec.json.encode((definitions, names), order="sorted")).hexdigest()[:16]
