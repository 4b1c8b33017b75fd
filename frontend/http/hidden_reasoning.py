"""Reasoning that a client gets only in encoded form, and sends back so that the next prompt has it. Not encrypted."""

import base64

from paged_serve.protocol.errors import InvalidRequest

_MARK = "hidden:"


def encoded(reasoning: str) -> str:
    return _MARK + base64.b64encode(reasoning.encode()).decode()


def decoded(text: str) -> str:
    """The reasoning that was encoded here; "" for another server's text. Raises InvalidRequest."""
    if not text.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(text.removeprefix(_MARK), validate=True).decode()
    except ValueError:
        raise InvalidRequest(
            "the encoded reasoning of an earlier answer was changed; send it back as it was received, or leave it out"
        ) from None
