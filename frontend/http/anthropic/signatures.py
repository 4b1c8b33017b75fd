"""Signatures of thinking blocks. They prove nothing, but some clients send back only blocks with a signature.

The signature of a block without its text (`display` omitted) has the text, so that the next prompt has it, too.
"""

import base64

from paged_serve.protocol.errors import InvalidRequest

SHOWN = "unsigned"
_HIDDEN = "hidden:"


def signature_of(hidden: str) -> str:
    """`hidden`: the reasoning, if the block is without it."""
    return _HIDDEN + base64.b64encode(hidden.encode()).decode() if hidden else SHOWN


def hidden_text(signature: str) -> str:
    """The reasoning that `signature_of` wrote; "" for another server's signature. Raises InvalidRequest."""
    if not signature.startswith(_HIDDEN):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_HIDDEN), validate=True).decode()
    except ValueError:
        raise InvalidRequest(
            "the signature of a thinking block was changed; send the block back as it was received, or leave it out",
            "messages",
        ) from None
