"""The values of generation_config.json are the defaults of requests, over HTTP and in LLM alike."""

import json
import re

import pytest

from paged_serve.frontend.conversation.model_files import sampling_defaults
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ..http_server import Server, make_model_folder

RECOMMENDED = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_new_tokens": 9,
}


@pytest.fixture
def recommending(tmp_path):
    """recommending({...}) -> a model folder with that generation_config.json."""

    def make(config):
        folder = make_model_folder(tmp_path / "model")
        (folder / "generation_config.json").write_text(json.dumps(config))
        return folder

    return make


def sampled(server):
    params = server.engine.requests[-1].params
    return params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty


def test_a_request_that_names_nothing_gets_the_models_values(recommending):
    server = Server(recommending(RECOMMENDED), "x" * 40)
    assert server.chat()["usage"]["completion_tokens"] == 9
    assert sampled(server) == (0.6, 0.95, 20, 0.05, 1.1)
    assert server.good("/v1/completions", {"prompt": "a"})["usage"]["completion_tokens"] == 16  # the API's own
    assert sampled(server) == (0.6, 0.95, 20, 0.05, 1.1)


def test_a_value_of_the_request_wins_and_null_counts_as_absent(recommending):
    server = Server(recommending(RECOMMENDED), "x" * 40)
    answer = server.chat(temperature=0, top_p=None, top_k=-1, max_tokens=12)
    assert answer["usage"]["completion_tokens"] == 12
    assert sampled(server) == (0, 0.95, -1, 0.05, 1.1)


@pytest.mark.parametrize("word", ["none", "vllm"])
def test_the_file_is_optional(recommending, word):
    config = ModelConfig(model=str(recommending(RECOMMENDED)), generation_config=word)
    assert sampling_defaults(config) == {}


def test_given_values_replace_those_of_the_file(recommending):
    folder = str(recommending(RECOMMENDED))
    given = '{"temperature": 0, "max_new_tokens": 4}'
    config = ModelConfig(model=folder, override_generation_config=given)
    assert sampling_defaults(config) == {
        **{name: RECOMMENDED[name] for name in ("top_p", "top_k", "min_p", "repetition_penalty")},
        "temperature": 0,
        "max_tokens": 4,
    }
    config = ModelConfig(model=folder, generation_config="none", override_generation_config=given)
    assert sampling_defaults(config) == {"temperature": 0, "max_tokens": 4}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("temperature=1", "override_generation_config=temperature=1: is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"top_b": 1}', "there is no top_b; known are temperature, top_p"),
        ('{"top_p": 2}', "override_generation_config: top_p is 2"),
    ],
)
def test_given_values_that_cannot_be_used_are_refused_by_name(recommending, given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        sampling_defaults(ModelConfig(model=str(recommending({})), override_generation_config=given))


def test_zero_is_a_value_and_do_sample_is_ignored(recommending):
    assert sampling_defaults(ModelConfig(model=str(recommending({"temperature": 0.0})))) == {"temperature": 0.0}
    assert sampling_defaults(ModelConfig(model=str(recommending({"do_sample": False, "top_p": None})))) == {}


@pytest.mark.parametrize("config", [{"temperature": 5}, {"top_p": 0}, {"top_k": 1.5}, {"min_p": "much"}])
def test_a_value_out_of_bounds_stops_the_start(recommending, config):
    folder = recommending(config)
    with pytest.raises(
        ConfigError, match=rf"generation_config.json: {next(iter(config))} is .*--generation-config none"
    ):
        sampling_defaults(ModelConfig(model=str(folder)))
