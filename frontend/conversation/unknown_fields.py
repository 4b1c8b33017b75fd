"""Unknown fields of a body: harmless ones, unsupported ones of other servers, and their limit."""

from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from paged_serve.protocol.errors import InvalidRequest

MAX_WARNINGS = 64
MAX_NODES = 100_000  # lists, objects and field names take 0.3 us each; numbers are ten times cheaper
_MAX_VALUE_BYTES = 64  # of a harmless field's value
_GUIDES = ("choice", "grammar", "json", "regex")


class Foreign(NamedTuple):
    """A field of other servers or of another route."""

    reason: str = ""  # why it is refused
    instead: str = ""  # what to use instead
    nothing: tuple[Any, ...] = ()  # values without an effect, in addition to null


_CHAT, _OF_CHATS = "/v1/chat/completions", "it applies to conversations"
_SERVICE = "it is a feature of Anthropic's service"
_NO_BEAMS = "beam search is not available over HTTP, only in LLM"
_ACTIVATION = "use_activation"
_NO_MEDIA = "only text models are served"
# Users know these fields from other servers: a reason helps more than a guess at a typo.
UNSUPPORTED = {
    "activation": Foreign(instead=_ACTIVATION),
    "allowed_tokens": Foreign(instead="allowed_token_ids"),
    "audio": Foreign(_NO_MEDIA),
    "best_of": Foreign("it was removed from vLLM and OpenAI's chats as well", "n", (1,)),
    "billing_policy": Foreign(_SERVICE),
    "chat_template": Foreign("templates in requests are not run", "the server's --chat-template"),
    "compaction": Foreign(_SERVICE),
    "container": Foreign(_SERVICE),
    "continuous_usage_stats": Foreign(instead='stream_options: {"continuous_usage_stats": …}', nothing=(False,)),
    "context_management": Foreign("conversations are not truncated", "a shorter conversation", ([],)),
    "conversation": Foreign("conversations are not stored", "input with the whole conversation"),
    "do_sample": Foreign(instead="temperature: 0 for greedy sampling", nothing=(True,)),
    "documents": Foreign(instead="a message with their text", nothing=([],)),
    "echo": Foreign("an answer is only the assistant's message", nothing=(False,)),
    "early_stopping": Foreign(_NO_BEAMS, nothing=(False,)),
    "ebnf": Foreign(instead='structured_outputs: {"grammar": …}'),
    "enable_thinking": Foreign(instead='chat_template_kwargs: {"enable_thinking": …}'),
    "extra_body": Foreign(
        "it is an argument of client libraries, which send its entries as top-level fields; do the same", "", ({},)
    ),
    "fallback_credit_token": Foreign(_SERVICE),
    "fallbacks": Foreign("the server has one model", nothing=([],)),
    "function_call": Foreign(_OF_CHATS, _CHAT, ("none", "auto")),
    "functions": Foreign(_OF_CHATS, _CHAT, ([],)),
    **{f"guided_{kind}": Foreign(instead=f'structured_outputs: {{"{kind}": …}}') for kind in _GUIDES},
    "include_obfuscation": Foreign("streams are not padded", nothing=(False,)),
    "include_reasoning": Foreign(_OF_CHATS, _CHAT, (True, False)),
    "include_usage": Foreign(instead='stream_options: {"include_usage": …}', nothing=(False,)),
    "inference_geo": Foreign(_SERVICE),
    "input": Foreign(instead="messages, or prompt of /v1/completions"),
    "json_schema": Foreign(instead='response_format: {"type": "json_schema", "json_schema": …}'),
    "kv_transfer_params": Foreign(nothing=({},)),
    "length_penalty": Foreign(_NO_BEAMS, nothing=(1, 1.0)),
    "max_tool_calls": Foreign("OpenAI's built-in tools are not available"),
    "max_new_tokens": Foreign(instead="max_tokens"),
    "max_output_tokens": Foreign(instead="max_tokens"),
    "mcp_servers": Foreign("the server does not connect to others", "tools that the client runs", ([],)),
    "messages": Foreign(instead=_CHAT),
    "metadata": Foreign("answers are not stored, so metadata cannot be searched", nothing=({},)),
    "mm_processor_kwargs": Foreign(_NO_MEDIA, nothing=({},)),
    "max_chunks_per_doc": Foreign("documents are not divided", "max_tokens_per_doc"),
    "modalities": Foreign(_NO_MEDIA, nothing=(["text"], [])),
    "moderation": Foreign("there is no moderation model"),
    "n_predict": Foreign(instead="max_tokens"),
    "normalize": Foreign(instead=_ACTIVATION),
    "partial": Foreign(instead="continue_final_message: true as a top-level field", nothing=(False,)),
    "prediction": Foreign(),
    "prefix": Foreign(instead="continue_final_message: true as a top-level field", nothing=(False,)),
    "prompt_embeds": Foreign("a prompt is text or tokens"),
    "rank_fields": Foreign("a document is a text"),
    "reasoning": Foreign(instead="reasoning_effort", nothing=({},)),
    "reasoning_effort": Foreign(_OF_CHATS, _CHAT),
    "repeat_penalty": Foreign(instead="repetition_penalty"),
    "service_tier": Foreign("there is one tier; leave it out, or set it to auto", nothing=("auto", "default")),
    "softmax": Foreign(instead=_ACTIVATION),
    "spaces_between_special_tokens": Foreign(nothing=(True, False)),  # the tokens determine the text
    "stop_sequences": Foreign(instead="stop", nothing=([],)),
    "stream": Foreign("this answer is not streamed", nothing=(False,)),
    "store": Foreign("answers are not stored; leave it out", nothing=(False,)),
    "suffix": Foreign("chats have no suffix", "/v1/completions", ("",)),
    "thinking": Foreign(instead="reasoning_effort"),
    "thinking_token_budget": Foreign(nothing=(-1,)),
    "thread": Foreign(_SERVICE),
    "tool_choice": Foreign(_OF_CHATS, _CHAT, ("none", "auto")),
    "tools": Foreign(_OF_CHATS, _CHAT, ([],)),
    "use_beam_search": Foreign(_NO_BEAMS, nothing=(False,)),
    "user_profile_id": Foreign(_SERVICE),
    "verbosity": Foreign(_OF_CHATS, _CHAT, ("medium",)),
    "web_search_options": Foreign("the server has no access to the web"),
    "workspace_id": Foreign(_SERVICE),
}
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_number_of_nodes(body: bytes) -> None:
    """Raises InvalidRequest for a body whose values would occupy the interpreter, and delay all requests, for long."""
    if _num_nodes(body) <= MAX_NODES:
        return
    # Strings do not count: with pairs of backslashes removed, each \\" left is an escaped quote.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') <= 2 * MAX_NODES and _num_nodes(b"".join(plain.split(b'"')[::2])) <= MAX_NODES:
        return
    raise InvalidRequest(f"The body has more than {MAX_NODES} lists, objects and fields.")


def _num_nodes(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b":")


def is_harmless(name: str, value: Any) -> bool:
    """Whether a field has no effect. Null counts as absent, whatever the name."""
    nothing = UNSUPPORTED[name].nothing if name in UNSUPPORTED else ()
    return value is None or any(type(value) is type(same) and value == same for same in nothing)


def without_foreign(body: bytes, known: Collection[str], lenient: bool) -> tuple[bytes, list[str]]:
    """(the object without top-level fields that may be ignored, the names of those to warn about), in one pass.

    Harmless fields are ignored silently; `lenient`: all unknown fields are ignored, and the names of the others
    returned.
    """
    try:
        fields = _fields_of(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body, []  # the strict decoder reports what is wrong
    foreign = {name: _is_harmless_text(name, raw) for name, raw in fields.items() if name not in known}
    dropped = [name for name, harmless in foreign.items() if harmless or lenient]
    if not dropped:
        return body, []
    for name in dropped:
        del fields[name]
    return msgspec.json.encode(fields), [name for name in dropped if not foreign[name]]


def _is_harmless_text(name: str, raw: msgspec.Raw) -> bool:
    text = bytes(memoryview(raw)[: _MAX_VALUE_BYTES + 1])
    if name not in UNSUPPORTED or len(text) > _MAX_VALUE_BYTES:
        return text == b"null"
    try:
        return is_harmless(name, msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
