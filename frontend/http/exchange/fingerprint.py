"""system_fingerprint: equal on servers whose answers to the same request are equal byte for byte."""

import hashlib

from paged_serve.protocol.messages.config import Config


def fingerprint(config: Config, arithmetic: str) -> str:
    """Of all settings that an answer depends on, and of none that it does not.

    `arithmetic` is what the workers made of device, dtype, summation and the number of ranks. The model is known by its
    folder and name: its files are not read.
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
        arithmetic,
    )
    return f"paged-serve-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"
