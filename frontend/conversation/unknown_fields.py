"""Fields that a body has and the server has not: which are harmless, which are known from elsewhere, and how many."""

from collections.abc import Collection
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

MAX_WARNINGS = 64
MAX_NODES = 100_000  # lists, objects and names of fields, which take 0.3 us each; numbers are ten times cheaper
_MAX_VALUE_BYTES = 64  # of a harmless field's value

# Sent by common clients, and true of what this server does anyway.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "detokenize": (True,),
    "include_reasoning": (False,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "use_beam_search": (False,),
}
# Users know these from elsewhere: "not supported" helps them more than a guess at a typing error.
UNSUPPORTED = {
    *_HARMLESS,
    *("audio", "chat_template", "documents", "function_call", "functions", "guided_choice"),
    *("guided_grammar", "guided_json", "guided_regex", "kv_transfer_params", "length_penalty", "logprob_token_ids"),
    *("metadata", "mm_processor_kwargs", "prediction", "prompt_embeds", "repetition_detection"),
    *("stream_interval", "suffix", "thinking_token_budget", "truncate_prompt_tokens"),
    *("truncation_side", "vllm_xargs", "web_search_options", "return_tokens_as_token_ids"),
    *("skip_reading_prefix_cache", "allowed_tokens", "logits_processors", "tools", "tool_choice"),
}
INSTEAD = {  # of fields that had another name once
    "function_call": "tool_choice",
    "functions": "tools",
    **{f"guided_{kind}": f'structured_outputs: {{"{kind}": …}}' for kind in ("choice", "grammar", "json", "regex")},
}
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_number_of_nodes(body: bytes) -> None:
    """InvalidRequest for a body whose values would hold the interpreter, and with it all other requests, for long."""
    if _num_nodes(body) <= MAX_NODES:
        return
    # What stands in texts does not count: two backslashes escape nothing, so that each \\" that is left is no quote.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') <= 2 * MAX_NODES and _num_nodes(b"".join(plain.split(b'"')[::2])) <= MAX_NODES:
        return
    raise InvalidRequest(f"The body has more than {MAX_NODES} lists, objects and fields.")


def _num_nodes(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b":")


def is_harmless(name: str, value: Any) -> bool:
    return (value is None and name in UNSUPPORTED) or any(
        type(value) is type(same) and value == same for same in _HARMLESS.get(name, ())
    )


def without_foreign(body: bytes, known: Collection[str], lenient: bool) -> tuple[bytes, list[str]]:
    """(the object without those of its own fields that may be left out, their names), found in one pass.

    Harmless fields are accepted silently; `lenient`: all are, and the names of the others are returned.
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
        return False
    try:
        return is_harmless(name, msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
