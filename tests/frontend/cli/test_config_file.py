"""Configuration files: their forms, and what is refused of them."""

import pytest

from paged_serve.frontend.config.options import resolve
from paged_serve.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", 'port = 9\n[scheduler]\npolicy = "priority"\n[cache]\nnum_blocks = 7\n'),
        ("c.yaml", "port: 9\nscheduling-policy: priority\ncache:\n  num_blocks: 7\n"),
        ("c.json", '{"port": 9, "scheduling_policy": "priority", "num-gpu-blocks-override": 7}'),
    ],
)
def test_a_file_may_name_flags_or_the_configurations_own_fields(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    config = resolve({"config_file": str(tmp_path / name)}, {}).config
    assert (config.server.port, config.scheduler.policy, config.cache.num_blocks) == (9, "priority", 7)


def test_a_file_may_be_written_for_vllm(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "model: m\nuvicorn-log-level: info\nenforce_eager: true\ncompilation-config:\n  mode: 3\nswap-space: 0\n"
        "default-chat-template-kwargs:\n  enable_thinking: false\noverride-generation-config: {top_k: 3}\n"
    )
    resolved = resolve({"config_file": str(tmp_path / "c.yaml")}, {})
    assert resolved.without_effect == ("uvicorn-log-level", "enforce_eager", "compilation-config", "swap-space")
    assert resolved.config.server.default_chat_template_kwargs == '{"enable_thinking":false}'
    assert resolved.config.model.override_generation_config == '{"top_k":3}'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "pipeline-parallel-size: 2", "pipeline-parallel-size is not supported: layers are not split"),
        ("c.yaml", "ssl-keyfile: f", "ssl-keyfile is not supported: HTTPS needs a proxy"),
        ("c.yaml", "tokenizer-mode: slow", "tokenizer-mode must be 'auto', as nothing else is supported"),
        ("c.yaml", "port: {a: 1}", "port={'a': 1}: is not a whole number"),
        ("c.toml", "prot = 1", "there is no option prot; did you mean port?"),
        ("c.toml", "[cache]\nblok_size = 16", "there is no option cache.blok_size; did you mean cache.block_size?"),
        ("c.json", "{", "Input data was truncated"),
        ("c.json", "[1]", "must map options to values"),
        ("c.ini", "", "must end in .toml, .yaml, .yml, .json"),
        ("c.toml", 'port = "many"', "port=many: is not a whole number"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as refused:
        resolve({"config_file": str(tmp_path / name)}, {})
    assert message in str(refused.value)
    assert str(tmp_path / name) in str(refused.value)


@pytest.mark.parametrize("name", ["c.toml", "c.yaml", "c.json"])
@pytest.mark.parametrize("content", [b"\xff\xfep\x00", b'"\xe9"', b"[" * 3000])
def test_a_file_that_is_no_text_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name):
        resolve({"config_file": str(tmp_path / name)}, {})


def test_a_missing_file_is_refused():
    with pytest.raises(ConfigError, match=r"cannot read configuration file nowhere\.toml: No such file"):
        resolve({"config_file": "nowhere.toml"}, {})
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        resolve({}, {"PAGED_SERVE_CONFIG": "nowhere.toml"})
