"""The fields of DRY and XTC, with llama.cpp's names and in vllm_xargs, over a fake engine."""

import pytest

from paged_serve.protocol.messages.samplers import Dry, Xtc

from ...http_server import Server

DRY = {
    "dry_multiplier": 0.8,
    "dry_base": 2,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["e", "no token has this"],
}
XTC = {"xtc_probability": 0.5, "xtc_threshold": 0.2}


@pytest.fixture
def server(folder):
    return Server(folder)


def breakers(server, *texts) -> tuple[int, ...]:
    return tuple(sorted({token for text in texts for token in server.tokenizer.tokens_with(text)}))


@pytest.mark.parametrize(
    "fields", [{**DRY, **XTC}, {"vllm_xargs": {**DRY, **XTC}}, {**DRY, "vllm_xargs": {**XTC, "dry_multiplier": 7}}]
)
def test_fields_reach_the_engine_from_either_place(server, fields):
    server.complete(**fields)
    server.chat(**fields)
    for request in server.engine.requests:
        dry = request.params.dry
        assert dry.breaker_token_ids == breakers(server, "e", "no token has this")
        assert (dry.multiplier, dry.base, dry.allowed_length, dry.penalty_last_n) == (0.8, 2, 3, 64)
        assert request.params.xtc == Xtc(probability=0.5, threshold=0.2)


def test_defaults_are_those_of_llama_cpp(server):
    server.complete(dry_multiplier=0.8, xtc_probability=0.1)
    params = server.engine.requests[0].params
    ids = breakers(server, "\n", ":", '"', "*")
    assert params.dry == Dry(
        multiplier=0.8,
        base=1.75,
        allowed_length=2,
        penalty_last_n=-1,
        sequence_breakers=("\n", ":", '"', "*"),
        breaker_token_ids=ids,
    )
    assert params.xtc == Xtc(probability=0.1, threshold=0.1)


@pytest.mark.parametrize(
    "fields", [{"dry_base": 2}, {"dry_multiplier": 0}, {"dry_multiplier": 1, "dry_penalty_last_n": 0}]
)
def test_a_sampler_that_is_off_is_not_sent_to_the_engine(server, fields):
    server.complete(**fields, xtc_threshold=0.3)
    params = server.engine.requests[0].params
    assert params.dry is None
    assert params.xtc is None


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"dry_multiplier": -1}, "dry_multiplier", "0"),
        ({"dry_base": 0.5}, "dry_base", "1"),
        ({"dry_allowed_length": 129}, "dry_allowed_length", "128"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]", "1"),
        ({"xtc_probability": 1.5}, "xtc_probability", "1"),
        ({"vllm_xargs": {"xtc_treshold": 0.5}}, "vllm_xargs.xtc_treshold", "xtc_threshold"),
        ({"vllm_xargs": {"xtc_probability": "often"}}, "vllm_xargs.xtc_probability", "float"),
    ],
)
def test_values_beyond_their_bounds_are_refused_by_name(server, fields, param, reason):
    answer = server.ask("POST", "/v1/completions", {"prompt": "x", **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert reason in error["message"]
