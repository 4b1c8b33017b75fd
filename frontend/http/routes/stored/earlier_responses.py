"""Reads the earlier responses, and the items, that a request refers to from the store."""

from collections.abc import Sequence
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ....buffer_budget import Lease
from ....conversation.messages import MAX_MESSAGES
from ...exchange.auth import Tenant
from ...exchange.body import MAX_BODY_BYTES
from ...exchange.errors import HttpError
from ...exchange.memory_costs import DECODED_PER_BYTE
from ...responses.chat_request import Earlier
from ...responses.schemas import GivenItem
from ...stored_responses.store import StoredResponses

PREVIOUS = "previous_response_id"
_decode_items = msgspec.json.Decoder(list[GivenItem]).decode
_decode_item = msgspec.json.Decoder(GivenItem).decode


class _Item(msgspec.Struct):
    id: Any = None
    type: Any = None


class References(msgspec.Struct):
    """The references in a body; its other fields are decoded later."""

    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    input: str | list[_Item] = ""

    @property
    def item_ids(self) -> list[str]:
        items = [] if isinstance(self.input, str) else self.input
        named = [item.id for item in items if item.type in ("item_reference", None) and isinstance(item.id, str)]
        return list(dict.fromkeys(named))


def references_of(raw: bytes) -> References:
    """The references in a body; none if it is invalid, which its decoder reports later."""
    try:
        return msgspec.json.decode(raw, type=References)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return References()


class _Output(msgspec.Struct):
    status: str
    output: msgspec.Raw


async def earlier_of(store: StoredResponses, tenant: Tenant, asked: References, lease: Lease) -> Earlier:
    """`lease`: grows by the memory of what is read. Raises InvalidRequest, or Overloaded without memory for it."""
    if asked.previous_response_id is None and not asked.item_ids:
        return Earlier([], {}, is_stored=True)
    caller = store.caller_of(tenant)
    parts = await _parts(store, caller, asked.previous_response_id)
    found: dict[str, bytes] = {}
    for item_id in asked.item_ids[:MAX_MESSAGES]:
        if (item := await store.item(caller, item_id)) is not None:
            found[item_id] = item
    lease.grow(DECODED_PER_BYTE * (sum(map(len, parts)) + sum(map(len, found.values()))))
    items = [item for part in parts for item in _decode_items(part)]
    if len(items) > MAX_MESSAGES:
        raise _too_long(f"has {len(items)} items; at most {MAX_MESSAGES}")
    return Earlier(items, {item_id: _decode_item(item) for item_id, item in found.items()}, is_stored=True)


async def _parts(store: StoredResponses, caller: bytes, last: str | None) -> Sequence[bytes]:
    """The JSON lists of items of the conversation, from its beginning to `last`."""
    parts, size, answer_id = list[bytes](), 0, last
    while answer_id is not None:
        try:
            row = await store.find(caller, answer_id)
        except HttpError as error:
            if error.status != 404:
                raise
            before = "" if answer_id == last else f", which precedes {last!r:.100}"
            raise InvalidRequest(
                f"{PREVIOUS} needs the response {answer_id!r:.100}{before}: it was never stored, or it was deleted; "
                "send the conversation so far in input",
                PREVIOUS,
            ) from None
        response = msgspec.json.decode(row.response, type=_Output)
        if response.status not in ("completed", "incomplete"):
            remedy = "wait for its end" if row.job is not None else "continue from another one"
            raise InvalidRequest(f"{PREVIOUS}: {answer_id!r:.100} is {response.status}; {remedy}", PREVIOUS)
        parts += [bytes(response.output), row.input]
        size += len(parts[-1]) + len(parts[-2])
        if size > MAX_BODY_BYTES or len(parts) > 2 * MAX_MESSAGES:
            raise _too_long(f"is longer than {MAX_BODY_BYTES} bytes")
        answer_id = row.previous
    return parts[::-1]


def _too_long(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{PREVIOUS}: the conversation {what} can be continued; start a new one with its essential parts in input",
        PREVIOUS,
    )
