"""Programs that accept LLM's keywords as flags."""

import dataclasses

import pytest

from paged_serve import EngineArgs, FlexibleArgumentParser
from paged_serve.frontend.config.llm_options import config_of
from paged_serve.protocol.errors import ConfigError


def parsed(*words: str) -> dict:
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="", max_model_len=512)
    parser.add_argument_group("sampling").add_argument("--max-tokens", type=int)
    return vars(parser.parse_args(words))


def config(options: dict):
    return config_of(options.pop("model") or "", options)


def test_flags_become_the_keywords_of_an_engine():
    words = ("--max_num_seqs=4", "--kv-cache-memory-bytes", "64M", "--no-enable-prefix-caching", "--dtype", "half")
    options = parsed(*words, "--tp", "2", "--enforce-eager", "--max-tokens", "7")
    assert options.pop("max_tokens") == 7
    found = config(options)
    assert found.scheduler.max_num_seqs == 4
    assert found.cache.kv_cache_memory_bytes == 64 << 20
    assert found.cache.enable_prefix_caching is False
    assert (found.model.dtype, found.model.max_model_len) == ("float16", 512)
    assert found.parallel.tensor_parallel_size == 2


def test_an_argument_that_is_not_given_has_its_default():
    options = parsed()
    options.pop("max_tokens")
    assert config({**options, "max_model_len": None}) == config_of("", {})
    assert config(dataclasses.asdict(EngineArgs())) == config_of("", {})
    assert config(dataclasses.asdict(EngineArgs(block_size=32))).cache.block_size == 32


def test_a_namespace_may_have_other_names(tmp_path):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--prompt")
    args = EngineArgs.from_cli_args(parser.parse_args(["--prompt", "x", "--seed", "3"]))
    assert (args.seed, hasattr(args, "prompt")) == (3, False)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--max-num-seqs", "none"), "not a whole number"),
        (("--block-size", "17"), "one of 16, 32, 64"),
        (("--port", "80"), "unrecognized arguments"),
    ],
)
def test_an_invalid_flag_ends_the_program_with_the_reason(words, reason, capsys):
    with pytest.raises(SystemExit):
        parsed(*words)
    assert reason in capsys.readouterr().err


def test_an_invalid_keyword_is_refused_with_the_valid_values():
    with pytest.raises(ConfigError, match=r"^quantization='int5': must be one of auto, int8, int4, fp8"):
        config_of("", {"quantization": "int5"})
