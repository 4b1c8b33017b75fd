"""A prompt that ends within its last message, for the model to go on with it: the template ends messages, we cut."""

from collections.abc import Mapping, Sequence
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

MARK = "PAGED-SERVE-GOES-ON-HERE "  # a word that templates leave alone, and a space that only some do


def with_mark(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same messages, the last one's text marked at its end. InvalidRequest when it has no text."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, list) and content and "text" in content[-1]:
        marked: Any = [*content[:-1], {**content[-1], "text": content[-1]["text"] + MARK}]
    elif isinstance(content, str):
        marked = content + MARK
    else:
        raise InvalidRequest("continue_final_message needs a last message whose content is text", "messages")
    return [*before, {**last, "content": marked}]


def cut_at_mark(prompt: str) -> str:
    """All before the mark; white space there only if the template keeps white space at a message's end."""
    end = prompt.rfind(MARK.rstrip())
    if end < 0:
        raise InvalidRequest(
            "continue_final_message: the model's chat template does not show the last message's content", "messages"
        )
    return prompt[:end] if prompt.startswith(MARK, end) else prompt[:end].rstrip()
