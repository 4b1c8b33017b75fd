"""system_fingerprint depends on exactly the settings that an answer depends on."""

import msgspec
import pytest

from paged_serve.frontend.http.exchange.fingerprint import fingerprint
from paged_serve.protocol.messages.config import Config

ARITHMETIC = "cpu bfloat16 dot"
PLAIN = fingerprint(Config(), ARITHMETIC)


def changed(section: str, field: str, value: object) -> Config:
    config = Config()
    return msgspec.structs.replace(
        config, **{section: msgspec.structs.replace(getattr(config, section), **{field: value})}
    )


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("parallel", "tensor_parallel_size", 4),
        ("parallel", "threads_per_rank", 3),
        ("parallel", "standby_workers", False),
        ("cache", "num_blocks", 700),
        ("cache", "block_size", 32),
        ("cache", "enable_prefix_caching", False),
        ("scheduler", "pipeline_depth", 1),
        ("scheduler", "max_num_batched_tokens", 64),
        ("server", "num_frontends", 2),
        ("model", "cpu_isa", "portable"),
        ("model", "device", "cpu"),
        ("model", "summation", "dot"),
        ("model", "dtype", "bfloat16"),
        ("model", "packed_weights_dir", "/somewhere"),
        ("model", "cache_dir", "/somewhere"),
    ],
)
def test_settings_that_change_no_byte_keep_the_fingerprint(section, field, value):
    assert fingerprint(changed(section, field, value), ARITHMETIC) == PLAIN


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("model", "model", "/models/another"),
        ("model", "served_model_names", ("another",)),
        ("model", "tokenizer", "/models/another"),
        ("model", "quantization", "int8"),
        ("model", "quantization_group_size", 64),
        ("model", "quantize_lm_head", True),
        ("model", "seed", 1),
        ("model", "generation_config", "none"),
        ("model", "override_generation_config", "{}"),
        ("cache", "kv_cache_dtype", "int8"),
        ("server", "chat_template", "{{ messages }}"),
        ("server", "default_chat_template_kwargs", '{"enable_thinking": false}'),
        ("server", "allow_special_tokens", True),
        ("server", "tool_call_parser", "none"),
        ("server", "reasoning_parser", "none"),
    ],
)
def test_settings_that_change_answers_change_the_fingerprint(section, field, value):
    assert fingerprint(changed(section, field, value), ARITHMETIC) != PLAIN


@pytest.mark.parametrize("arithmetic", ["cpu bfloat16 tile", "cpu float32", "cpu bfloat16 dot 3 ranks"])
def test_the_workers_dtype_and_order_of_sums_change_the_fingerprint(arithmetic):
    assert fingerprint(Config(), arithmetic) != PLAIN
