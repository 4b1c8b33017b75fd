"""Unknown fields of a body: harmless ones, unsupported ones of other servers, and their limit."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from paged_serve.protocol.errors import InvalidRequest

MAX_WARNINGS = 64
MAX_NODES = 100_000  # lists, objects and field names take 0.3 us each; numbers are ten times cheaper
_MAX_VALUE_BYTES = 64  # of a harmless field's value
_GUIDED = "guided_"  # prefix of the names that vLLM had for the fields of structured_outputs
_GUIDES = ("choice", "grammar", "json", "regex")


class UnsupportedField(NamedTuple):
    """A field of other servers or of another route."""

    reason: str = ""  # why it is refused
    instead: str = ""  # what to use instead
    nothing: tuple[Any, ...] = ()  # values without an effect, in addition to null


_CHAT, _OF_CHATS = "/v1/chat/completions", "it applies to conversations"
_SERVICE = "it is a feature of Anthropic's service"
_NO_BEAMS = "beam search is available in /v1/chat/completions and /v1/completions"
_ACTIVATION = "use_activation"
NO_MEDIA = "only text is served"
# Users know these fields from other servers: a reason helps more than a guess at a typo.
UNSUPPORTED = {
    "activation": UnsupportedField(instead=_ACTIVATION),
    "allowed_tokens": UnsupportedField(instead="allowed_token_ids"),
    "async": UnsupportedField("the result of a call is sent in the next request", nothing=(False,)),
    "audio": UnsupportedField(NO_MEDIA),
    "best_of": UnsupportedField("it belongs to /v1/completions", "n", (1,)),
    "billing_policy": UnsupportedField(_SERVICE),
    "chat_template": UnsupportedField("templates in requests are not run", "the server's --chat-template"),
    "compaction": UnsupportedField(_SERVICE),
    "container": UnsupportedField(_SERVICE),
    "continuous_usage_stats": UnsupportedField(
        instead='stream_options: {"continuous_usage_stats": …}', nothing=(False,)
    ),
    "context_management": UnsupportedField("conversations are not truncated", "a shorter conversation", ([],)),
    "conversation": UnsupportedField("conversations are not stored", "input with the whole conversation"),
    "do_sample": UnsupportedField(instead="temperature: 0 for greedy sampling", nothing=(True,)),
    "documents": UnsupportedField(_OF_CHATS, _CHAT, ([],)),
    "echo": UnsupportedField("an answer is only the assistant's message", nothing=(False,)),
    "early_stopping": UnsupportedField("a beam search ends when all beams have ended", nothing=(False,)),
    "ec_transfer_params": UnsupportedField("only text is served", nothing=({},)),
    "ebnf": UnsupportedField(instead='structured_outputs: {"grammar": …}'),
    "enable_response_messages": UnsupportedField("the answer has items only", nothing=(False,)),
    "enable_thinking": UnsupportedField(instead='chat_template_kwargs: {"enable_thinking": …}'),
    "extra_body": UnsupportedField(
        "it is an argument of client libraries, which send its entries as top-level fields; do the same", "", ({},)
    ),
    "fallback_credit_token": UnsupportedField(_SERVICE),
    "fallbacks": UnsupportedField("the server has one model", nothing=([],)),
    "function_call": UnsupportedField(_OF_CHATS, _CHAT, ("none", "auto")),
    "functions": UnsupportedField(_OF_CHATS, _CHAT, ([],)),
    **{f"{_GUIDED}{kind}": UnsupportedField(instead=f'structured_outputs: {{"{kind}": …}}') for kind in _GUIDES},
    "guided_decoding_backend": UnsupportedField("there is one backend; leave it out", nothing=("guidance",)),
    "include_obfuscation": UnsupportedField("streams are not padded", nothing=(False,)),
    "include_reasoning": UnsupportedField(_OF_CHATS, _CHAT, (True, False)),
    "include_usage": UnsupportedField(instead='stream_options: {"include_usage": …}', nothing=(False,)),
    "inference_geo": UnsupportedField(_SERVICE),
    "input": UnsupportedField(instead="messages, or prompt of /v1/completions"),
    "json_schema": UnsupportedField(instead='response_format: {"type": "json_schema", "json_schema": …}'),
    "kv_transfer_params": UnsupportedField("blocks are not passed between servers", nothing=({},)),
    "length_penalty": UnsupportedField(_NO_BEAMS, nothing=(1, 1.0)),
    "max_tool_calls": UnsupportedField("OpenAI's built-in tools are not available"),
    "max_new_tokens": UnsupportedField(instead="max_tokens"),
    "max_output_tokens": UnsupportedField(instead="max_tokens"),
    "mcp_servers": UnsupportedField("the server does not connect to others", "tools that the client runs", ([],)),
    "media_io_kwargs": UnsupportedField(NO_MEDIA, nothing=({},)),
    "messages": UnsupportedField(instead=_CHAT),
    "metadata": UnsupportedField("answers are not stored, so metadata cannot be searched", nothing=({},)),
    "mm_payload": UnsupportedField(NO_MEDIA, nothing=("tensors", "none")),
    "mm_processor_kwargs": UnsupportedField(NO_MEDIA, nothing=({},)),
    "max_chunks_per_doc": UnsupportedField("documents are not divided", "max_tokens_per_doc"),
    "modalities": UnsupportedField(NO_MEDIA, nothing=(["text"], [])),
    "moderation": UnsupportedField("there is no moderation model"),
    "n_predict": UnsupportedField(instead="max_tokens"),
    "normalize": UnsupportedField(instead=_ACTIVATION),
    "partial": UnsupportedField(instead="continue_final_message: true as a top-level field", nothing=(False,)),
    "prediction": UnsupportedField(),
    "prefix": UnsupportedField(instead="continue_final_message: true as a top-level field", nothing=(False,)),
    "prompt_embeds": UnsupportedField("a prompt is text or tokens"),
    "rank_fields": UnsupportedField("a document is a text"),
    "reasoning": UnsupportedField(instead="reasoning_effort", nothing=({},)),
    "reasoning_effort": UnsupportedField(_OF_CHATS, _CHAT),
    "repeat_penalty": UnsupportedField(instead="repetition_penalty"),
    "return_mm_kwargs": UnsupportedField(NO_MEDIA, nothing=(True, False)),
    "return_prompt_text": UnsupportedField(instead="/apply-template", nothing=(False,)),
    "return_token_offsets": UnsupportedField("tokens are returned without their places in the text", nothing=(False,)),
    "routed_experts_prompt_start": UnsupportedField("the experts of tokens are not returned", nothing=(0,)),
    "service_tier": UnsupportedField("there is one tier; leave it out, or set it to auto", nothing=("auto", "default")),
    "softmax": UnsupportedField(instead=_ACTIVATION),
    "spaces_between_special_tokens": UnsupportedField(nothing=(True, False)),  # the tokens determine the text
    "stop_sequences": UnsupportedField(instead="stop", nothing=([],)),
    "stream": UnsupportedField("this answer is not streamed", nothing=(False,)),
    "store": UnsupportedField("answers are not stored; leave it out", nothing=(False,)),
    "suffix": UnsupportedField("chats have no suffix", "/v1/completions", ("",)),
    "thinking": UnsupportedField(instead="reasoning_effort"),
    "thinking_token_budget": UnsupportedField(nothing=(-1,)),
    "thread": UnsupportedField(_SERVICE),
    "tool_choice": UnsupportedField(_OF_CHATS, _CHAT, ("none", "auto")),
    "tools": UnsupportedField(_OF_CHATS, _CHAT, ([],)),
    "use_beam_search": UnsupportedField(_NO_BEAMS, nothing=(False,)),
    "user_profile_id": UnsupportedField(_SERVICE),
    "verbosity": UnsupportedField(_OF_CHATS, _CHAT, ("medium",)),
    "watermarking": UnsupportedField("outputs have no watermark", nothing=(False,)),
    "web_search_options": UnsupportedField("the server has no access to the web"),
    "workspace_id": UnsupportedField(_SERVICE),
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


def without_unknown_fields(body: bytes, known: Collection[str], lenient: bool) -> tuple[bytes, list[str]]:
    """(the object without top-level fields that may be ignored, the names of those to warn about), in one pass.

    Harmless fields are ignored silently; `lenient`: all unknown fields are ignored, and the names of the others
    returned.
    """
    try:
        fields = _fields_of(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body, []  # the strict decoder reports what is wrong
    foreign = {
        name: _is_harmless_text(name, raw) or _is_repeated(name, raw, fields)
        for name, raw in fields.items()
        if name not in known
    }
    dropped = [name for name, harmless in foreign.items() if harmless or lenient]
    if not dropped:
        return body, []
    for name in dropped:
        del fields[name]
    return msgspec.json.encode(fields), [name for name in dropped if not foreign[name]]


def _is_repeated(name: str, raw: msgspec.Raw, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether structured_outputs has the same value: guidance sends both, one for each generation of vLLM."""
    if not name.startswith(_GUIDED) or "structured_outputs" not in fields:
        return False
    try:
        form = _fields_of(fields["structured_outputs"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    kind = name.removeprefix(_GUIDED)
    return kind in form and bytes(form[kind]) == bytes(raw)


def _is_harmless_text(name: str, raw: msgspec.Raw) -> bool:
    text = bytes(memoryview(raw)[: _MAX_VALUE_BYTES + 1])
    if name not in UNSUPPORTED or len(text) > _MAX_VALUE_BYTES:
        return text == b"null"
    try:
        return is_harmless(name, msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
