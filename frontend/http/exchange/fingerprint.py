"""system_fingerprint: equal on servers whose answers to the same request are equal byte for byte."""

import hashlib
from typing import Any

import msgspec

from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.loading.adapters import Adapter


def fingerprint(config: Config, arithmetic: str) -> str:
    """A hash of exactly those settings that an answer depends on.

    `arithmetic`: device, dtype, summation and number of ranks as the workers resolved them. The model is identified by
    its folder and name; its files are not read.
    """
    model = config.model
    settings = (
        (model.served_model_names or (model.model,))[0],
        model.model,
        model.tokenizer,
        model.quantization,
        model.quantization_group_size,
        model.quantize_lm_head,
        model.max_model_len,
        model.generation_config,
        model.seed,
        config.cache.kv_cache_dtype,
        config.server.chat_template,
        config.server.allow_special_tokens,
        config.server.tool_call_parser,
        config.server.reasoning_parser,
        arithmetic,
    )
    return f"paged-serve-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"


def with_adapter(base: str, adapter: Adapter) -> str:
    """The fingerprint of an adapter's answers, from that of the base model's."""
    return f"paged-serve-{hashlib.sha256(f'{base} {adapter.digest}'.encode()).hexdigest()[:8]}"


class _Named(msgspec.Struct):
    model: Any = None


def named_model(body: bytes) -> str:
    """The model that a JSON body names; "" if it names none."""
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""  # the body is refused later
    return model if isinstance(model, str) else ""
