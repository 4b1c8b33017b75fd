"""system_fingerprint: equal on servers whose answers to the same request are equal byte for byte."""

import hashlib
from typing import Any

import msgspec

from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.plugins import PluginKind, digest_of_code

from ...parsers.detection import AUTO, NONE


def fingerprint(config: Config, arithmetic: str) -> str:
    """A hash of exactly those settings that an answer depends on.

    `arithmetic`: device, dtype, summation and number of ranks as the workers resolved them. The model is identified by
    its folder and name; its files are not read. Those of plugins are.
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
        model.override_generation_config,
        model.seed,
        config.cache.kv_cache_dtype,
        config.server.chat_template,
        config.server.default_chat_template_kwargs,
        config.server.allow_special_tokens,
        config.server.tool_call_parser,
        config.server.reasoning_parser,
        arithmetic,
        _plugins(config),
    )
    return f"paged-serve-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"


def _plugins(config: Config) -> str:
    """A digest of the plugins that answers depend on. An adapter that one finds has a fingerprint of its own."""
    kinds = PluginKind.FAMILY, PluginKind.LOGITS_PROCESSOR, PluginKind.IO_PROCESSOR
    options = (
        (PluginKind.PLATFORM, config.model.platform),
        (PluginKind.TOOL_PARSER, config.server.tool_call_parser),
        (PluginKind.REASONING_PARSER, config.server.reasoning_parser),
    )
    of_options = [(kind, (name,)) for kind, name in options if name not in (AUTO, NONE)]
    return digest_of_code([*((kind, config.model.plugins) for kind in kinds), *of_options])


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
