"""Rejects requests that do not decode, which a client in another language may send."""

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import EngineCoreRequest, RejectReason, RequestRejected, StreamId
from paged_serve.protocol.messages.message import MAX_LONG_TEXT

_fields = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def rejection(frame: bytes, error: Exception) -> RequestRejected | None:
    """The rejection of `frame`, if it is a request with a readable id. `error`: why it could not be decoded."""
    if not isinstance(error, msgspec.ValidationError):
        return None
    try:
        name, request_id, *_ = _fields(frame)
        if msgspec.msgpack.decode(name, type=str) != EngineCoreRequest.__name__:
            return None
        stream_id = msgspec.msgpack.decode(request_id, type=StreamId)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None  # the frame was counted and the error is in the log
    cause = error.__cause__
    if isinstance(cause, InvalidRequest):
        return RequestRejected(
            stream_id, RejectReason.INVALID, cause.message[:MAX_LONG_TEXT], (cause.param or "")[:256]
        )
    return RequestRejected(stream_id, RejectReason.INVALID, str(error)[:MAX_LONG_TEXT])
