"""Flags and environment become one Config: precedence, forms of values, refusals."""

import itertools
import json
import typing
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_serve.frontend.config.options import config_options, resolve
from paged_serve.frontend.config.settings import BY_NAME, SETTINGS
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

API_KEY = "must be visible ASCII characters without spaces, at least one and at most 4096"
PACKAGE = Path(__file__).parents[2] / "plugins" / "package"
EXAMPLES = {  # valid values of each setting, one for each of the three sources
    "model.model": ("a", "b", "c"),
    "model.model_impl": ("native", "transformers", "auto"),
    "model.trust_remote_code": (True, False, True),
    "model.revision": ("a", "b", "c"),
    "model.override_generation_config": ("{}", '{"top_k": 1}', '{"top_k": 2}'),
    "model.served_model_names": ("a", "b", "c"),
    "model.tokenizer": ("a", "b", "c"),
    "model.dtype": ("bfloat16", "float16", "float32"),
    "model.device": ("cpu", "cuda", "auto"),
    "model.cpu_isa": ("avx2", "portable", "torch"),
    "model.summation": ("dot", "tile", "auto"),
    "parallel.pin_threads": ("always", "never", "auto"),
    "model.quantization": ("int8", "int4", "awq"),
    "model.quantization_group_size": (32, 64, 128),
    "model.quantize_lm_head": (True, False, True),
    "model.platform": ("acme", "acme-missing", "acme"),
    "model.plugins": ("acme", "acme-faulty", "acme-wrong"),
    "model.generation_config": ("none", "vllm", "auto"),
    "model.pooling": ("mean", "last", "cls"),
    "server.chat_template": ("a", "b", "c"),
    "server.default_chat_template_kwargs": ("{}", '{"a": 1}', '{"a": 2}'),
    "server.tool_call_parser": ("a", "b", "c"),
    "server.reasoning_parser": ("a", "b", "c"),
    "server.client_address": ("tcp://a:1", "tcp://b:2", "tcp://c:3"),
    "server.client_server_key": ("a", "b", "c"),
    "server.client_keys": ("a", "b", "c"),
    "model.cache_dir": ("a", "b", "c"),
    "model.packed_weights_dir": ("a", "b", "c"),
    "cache.kv_cache_dtype": ("int8", "auto", "fp8"),
    "cache.block_size": (16, 32, 64),
    "cache.kv_cache_memory_bytes": (100_000, 200_000, 300_000),
    "cache.gpu_memory_utilization": (0.5, 0.25, 1.0),
    "cache.enable_prefix_caching": (True, False, True),
    "kv_events.endpoint": ("a", "b", "c"),
    "kv_events.replay_endpoint": ("a", "b", "c"),
    "kv_events.topic": ("a", "b", "c"),
    "kv_tier.dir": ("a", "b", "c"),
    "kv_tier.max_bytes": (100_000, 200_000, 300_000),
    "kv_tier.host_bytes": (100_000, 200_000, 300_000),
    "speculation.method": ("ngram", "off", "ngram"),
    "speculation.draft_model": ("a", "b", "c"),
    "speculation.adaptive": (True, False, True),
    "lora.adapters": ("a=b", "c=d", "e=f"),
    "lora.enabled": (True, False, True),
    "lora.allow_loading": (True, False, True),
    "scheduler.policy": ("fcfs", "priority", "fcfs"),
    "scheduler.pipeline_depth": (1, 2, 3),
    "server.host": ("a", "b", "c"),
    "server.uds": ("a", "b", "c"),
    "server.api_keys": ("a", "b", "c"),
    "server.root_path": ("/a", "/b", "/c"),
    "server.allowed_origins": ("https://a", "https://b", "*"),
    "server.allowed_methods": ("GET", "POST", "HEAD"),
    "server.allowed_headers": ("a", "b", "c"),
    "server.allow_credentials": (True, False, True),
    "server.allowed_hosts": ("a", "*.b", "[::1]"),
    "server.dump_dir": ("a", "b", "c"),
    "server.store_responses": ("a", "b", "c"),
    "server.stored_responses_bytes": (2 << 20, 3 << 20, 4 << 20),
    "server.metrics_compat": ("vllm", "vllm", "vllm"),
    "server.lenient": (True, False, True),
    "server.allow_special_tokens": (True, False, True),
    "cache.share_prefixes": (True, False, True),
    "server.public_metrics": (True, False, True),
    "server.wake_supervisor": (True, False, True),
    "parallel.standby_workers": (True, False, True),
    "scheduler.max_unacknowledged_bytes": (20 << 20, 30 << 20, 40 << 20),
    "server.access_log": (False, True, False),
    "server.max_buffered_bytes": (20 << 20, 30 << 20, 40 << 20),
    "server.log_level": ("debug", "info", "error"),
}


def value_of(config: Config, key: str):
    layer, field = key.split(".")
    return getattr(getattr(config, layer), field)


def field_value(setting, value):
    return (
        (value,)
        if setting.is_list
        or setting.key
        in ("model.served_model_names", "server.api_keys", "server.api_key_weights", "model.plugins", "lora.adapters")
        else value
    )


def test_every_value_of_the_configuration_can_be_set():
    fields = {
        f"{layer}.{field}"
        for layer, layer_type in typing.get_type_hints(Config).items()
        for field in layer_type.__struct_fields__
    }
    assert {setting.key for setting in SETTINGS} == fields
    flags = [flag for setting in SETTINGS for flag in setting.flags]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path, setting, monkeypatch):
    monkeypatch.syspath_prepend(PACKAGE)  # contains the plugins that the examples name
    for given_by in itertools.product((False, True), repeat=3):
        check_precedence(tmp_path, setting, *given_by)


def check_precedence(folder, setting, by_flag, by_environment, by_file):
    flag, environment, in_file = EXAMPLES.get(setting.key, (1, 2, 3))
    flags, variables = {}, {}
    if by_flag:
        value = flag if isinstance(flag, bool) else str(flag)
        flags[setting.name.replace("-", "_")] = [value] if field_value(setting, 0) == (0,) else value
    if by_environment:
        variables[setting.environment] = str(environment)
    if by_file:
        path = folder / "config.json"
        path.write_text(json.dumps({setting.name: in_file}))
        flags["config_file"] = str(path)
    given = {setting.key}
    if setting.key == "speculation.draft_model" and (by_flag or by_environment or by_file):
        variables["PAGED_SERVE_SPECULATIVE"] = "draft"  # without which a folder is refused
        given.add("speculation.method")
    resolved = resolve(flags, variables)
    expected, origin = (
        (field_value(setting, flag), f"flag --{setting.name}")
        if by_flag
        else (field_value(setting, environment), f"environment {setting.environment}")
        if by_environment
        else (field_value(setting, in_file), f"file {path}")
        if by_file
        else (value_of(Config(), setting.key), "default")
    )
    assert value_of(resolved.config, setting.key) == expected
    assert resolved.origins[setting.key] == origin
    assert all(origin == "default" for key, origin in resolved.origins.items() if key not in given)


@pytest.mark.parametrize("given", [["a", "b,c"], ['["a", "b"]', "c"], ["a,b,c"]])
def test_a_list_of_words_is_repeated_or_written_in_one(tmp_path, given):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"allowed-headers": given}))
    for flags in ({"allowed_headers": given}, {"config_file": str(path)}):
        assert resolve(flags, {}).config.server.allowed_headers == ("a", "b", "c")


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("allowed-origins", "https://a.example/", "without a path"),
        ("allowed-origins", "a.example", "a scheme and a host"),
        ("allowed-origins", "https://a b", "a scheme and a host"),
        ("allowed-origins", '["https://a.example', "a scheme and a host"),
        ("allowed-methods", "PO ST", "a method like POST"),
        ("allowed-headers", "a: b", "the name of a header"),
        ("allowed-hosts", "a.example:80", "without a port"),
        ("allowed-hosts", "a.*", "*.example"),
        *(("root-path", path, "a path like /llm") for path in ("llm", "/llm/", "/v1", "/v1/llm", "/a b", "/a?b")),
    ],
)
def test_an_impossible_origin_host_or_path_is_refused_with_an_example(name, wrong, reason):
    with pytest.raises(ConfigError) as refusal:
        resolve({name.replace("-", "_"): wrong if name == "root-path" else [wrong]}, {})
    assert reason in str(refusal.value)
    assert str(refusal.value).startswith(f"flag --{name}=")


@pytest.mark.parametrize(
    ("key", "spelling", "value"),
    [
        ("kv-cache-memory-bytes", "4G", 4 << 30),
        ("kv-cache-memory-bytes", "512MiB", 512 << 20),
        ("kv-cache-memory-bytes", "1.5g", 1_500_000_000),
        ("max-model-len", "16k", 16_000),
        ("max-model-len", "16K", 16_384),
        ("max-model-len", "auto", None),
        ("max-model-len", "-1", None),
        ("dtype", "half", "float16"),
        ("enable-prefix-caching", "off", False),
        ("enable-prefix-caching", "TRUE", True),
        ("served-model-name", "a,b", ("a", "b")),
        ("block-size", "32", 32),
        ("allowed-origins", '["https://a", "http://b:1"]', ("https://a", "http://b:1")),
        ("allowed-origins", "https://a, http://b:1", ("https://a", "http://b:1")),
        ("allowed-hosts", "*.a.example", ("*.a.example",)),
    ],
)
def test_a_value_has_several_spellings(key, spelling, value):
    setting = BY_NAME[key]
    assert value_of(resolve({}, {setting.environment: spelling}).config, setting.key) == value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": "65536"}, "flag --port=65536: must be at most 65535"),
        ({"device": "tpu"}, "flag --device=tpu: must be one of auto, cpu, cuda"),
        ({"block_size": "17"}, "flag --block-size=17: must be one of 16, 32, 64"),
        ({"metrics_compat": "x"}, "flag --metrics-compat=x: must be one of vllm"),
        ({"seed": "x"}, "flag --seed=x: is not a whole number"),
        ({"num_blocks": "0"}, "flag --num-blocks=0: must be at least 1"),
        ({"kv_tier_bytes": "4X"}, "flag --kv-tier-bytes=4X: must be a number of bytes, like 4G or 512M"),
        ({"max_buffered_bytes": "5"}, "flag --max-buffered-bytes=5: must be at least 16M"),
        ({"api_key": ("good", "")}, f"flag --api-key=***: {API_KEY}"),
        ({"api_key": ("two words",)}, f"flag --api-key=***: {API_KEY}"),
        ({"api_key": ("from-a-file\n",)}, f"flag --api-key=***: {API_KEY}"),
        ({"api_key": ("k",) * 257}, "flag --api-key=***: must have at most 256 values"),
        ({"model_argument": "a", "model": "b"}, "the model is given twice: a and --model b"),
    ],
)
def test_a_wrong_value_is_refused_with_its_origin_and_the_allowed_values(flags, message):
    with pytest.raises(ConfigError) as refused:
        resolve(flags, {})
    assert str(refused.value) == message


def test_a_wrong_value_in_a_file_is_named_by_its_key(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text("drain-timeout = -1")
    with pytest.raises(ConfigError, match=f"^file {file}: drain-timeout=-1: must be at least 0"):
        resolve({"config_file": str(file)}, {})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PAGED_SERVE_PROT", "there is no such variable; did you mean PAGED_SERVE_PORT?"),
        ("PAGED_SERVE_MAX_NUM_SEQUENCES", "did you mean PAGED_SERVE_MAX_NUM_SEQS?"),
        ("PAGED_SERVE_ZEBRA", "environment PAGED_SERVE_ZEBRA: there is no such variable"),
    ],
)
def test_a_misspelt_variable_is_refused_by_name(name, words):
    with pytest.raises(ConfigError) as refused:
        resolve({}, {name: "1"})
    assert str(refused.value).endswith(words)


@pytest.mark.parametrize("value", ["", "json", "text"])
def test_the_log_has_one_of_two_formats(value):
    assert resolve({}, {"PAGED_SERVE_LOG_FORMAT": value}).config == Config()
    with pytest.raises(ConfigError, match=r"^environment PAGED_SERVE_LOG_FORMAT=JSON: must be one of text, json$"):
        resolve({}, {"PAGED_SERVE_LOG_FORMAT": "JSON"})


def test_kubernetes_service_variables_are_ignored():
    variables = {
        "PAGED_SERVE_SERVICE_HOST": "10.0.0.1",
        "PAGED_SERVE_SERVICE_PORT_HTTP": "8000",
        "PAGED_SERVE_PORT": "tcp://10.0.0.1:8000",
        "PAGED_SERVE_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert resolve({}, variables).config == Config()


def test_an_empty_key_counts_as_none():
    with pytest.raises(ConfigError):
        resolve({}, {"PAGED_SERVE_API_KEY": "key,"})
    assert resolve({}, {"PAGED_SERVE_API_KEY": ""}).config.server.api_keys == ()


def test_a_key_variable_of_another_server_is_accepted_but_ours_wins():
    assert resolve({}, {"VLLM_API_KEY": "theirs"}).config.server.api_keys == ("theirs",)
    both = {"VLLM_API_KEY": "theirs", "PAGED_SERVE_API_KEY": "ours"}
    assert resolve({}, both).config.server.api_keys == ("ours",)


@pytest.mark.parametrize("num_examples", [40, pytest.param(100, marks=pytest.mark.nightly)])
def test_any_environment_gives_a_valid_config_or_a_refusal(num_examples):
    variables = st.dictionaries(st.sampled_from([setting.environment for setting in SETTINGS]), st.text(max_size=8))
    settings(max_examples=num_examples, deadline=None)(given(variables)(check_environment))()


def check_environment(variables):
    try:
        config = resolve({}, variables).config
    except ConfigError:
        return
    assert msgspec.convert(msgspec.to_builtins(config), Config) == config


@pytest.mark.parametrize("flag", ["--no-access-log", "--disable-access-log"])
def test_the_access_log_is_turned_off_by_either_name(flag):
    seen = []

    @click.command()
    @config_options
    def command(**given):
        seen.append(resolve(given, {}).config.server.access_log)

    assert CliRunner().invoke(command, [flag]).exit_code == 0
    assert seen == [False]
