"""A package of another project extends a server, without a change here: its model, its device, its processors."""

import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import pytest

from paged_serve import LLM, InvalidRequest, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.messages.logits_processors import LogitsProcessorParams

from ..end_to_end.server_process import ServerProcess
from .test_loading import PACKAGE

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

EVERY_THIRD = {"name": "acme", "args": {"step": 3, "of": 1}}
BODY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 1.0, "return_token_ids": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The demo model as a checkpoint of the package's own architecture."""
    folder = tmp_path_factory.mktemp("model") / "acme"
    shutil.copytree(demo_model_folder(), folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["AcmeForCausalLM"]
    config["width"], config["depth"] = config.pop("hidden_size"), config.pop("num_hidden_layers")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def ask(server: ServerProcess, **fields) -> tuple[int, dict]:
    with server.ask("POST", "/v1/completions", {**BODY, **fields}) as response:
        return response.status, json.loads(response.read())


def tokens(server: ServerProcess, **fields) -> list[int]:
    status, answer = ask(server, **fields)
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    names = ("--plugin", "acme", "--plugin", "acme-faulty", "--tool-call-parser", "acme", "--tp", "2")
    names += ("--no-standby-workers",)
    server = ServerProcess(tmp_path_factory.mktemp("server"), str(model), *names, import_path=PACKAGE)
    server.wait_ready()
    yield server
    server.close()


def test_processors_choose_the_tokens_of_their_own_request_alone(server):
    plain = tokens(server, seed=5)
    with ThreadPoolExecutor(8) as pool:
        held = [pool.submit(tokens, server, seed=seed, logits_processors=[EVERY_THIRD]) for seed in range(4)]
        free = [pool.submit(tokens, server, seed=5) for _ in range(4)]
    assert all(each.result() == plain for each in free)
    for each in held:
        found = each.result()
        assert all(token % 3 == 1 for token in found)
        assert all(one != other for one, other in pairwise(found))
    assert held[0].result() == tokens(server, seed=0, logits_processors=[EVERY_THIRD])


def stream(server: ServerProcess, begun: Barrier, **fields) -> list[int]:
    """The tokens of a stream that waits for others once it has begun."""
    with server.ask("POST", "/v1/completions", {**BODY, **fields, "stream": True}) as response:
        lines = iter(response)
        pieces = [next(lines) for _ in range(4)]
        begun.wait()
        pieces += lines
    events = [json.loads(line[6:]) for line in pieces if line.startswith(b"data: {")]
    return [token for event in events for choice in event["choices"] for token in choice["token_ids"] or ()]


def test_requests_go_on_with_the_same_tokens_after_a_worker_of_two_was_killed(server):
    long = {"max_tokens": 400, "ignore_eos": True}
    asked = [{"seed": 1, **long, "logits_processors": [EVERY_THIRD]}, *({"seed": seed, **long} for seed in range(3))]
    begun = Barrier(len(asked) + 1, timeout=60)
    with ThreadPoolExecutor(len(asked)) as pool:
        undisturbed = [*pool.map(lambda fields: tokens(server, **fields), asked)]
        streams = [pool.submit(stream, server, begun, **fields) for fields in asked]
        begun.wait()
        server.children()["worker"].send_signal(signal.SIGKILL)
        assert [each.result() for each in streams] == undisturbed


@pytest.mark.parametrize(
    ("processor", "told"),
    [
        ({"name": "acme-faulty"}, "logits processor acme-faulty: RuntimeError: the third token is too much"),
        ({"name": "acme-faulty", "args": {"raises": False}}, "acme-faulty left a logit that is NaN or +infinity"),
    ],
)
def test_a_processor_that_fails_ends_its_own_request(server, processor, told):
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(tokens, server, seed=5)
        status, answer = ask(server, logits_processors=[processor])
    assert status == 500
    assert "sending it again will not help" in answer["error"]["message"]
    server.wait_for_text(told)  # the reason is the operator's
    assert beside.result() == tokens(server, seed=5)


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stream": True}])
@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"step": 2, "of": 2}, "of=2 must be at least 0 and less than step=2"),
        ({"stride": 2}, "Every.__init__() got an unexpected keyword argument 'stride'"),
    ],
)
def test_wrong_arguments_of_a_processor_are_refused_with_the_fields_name(server, args, told, more):
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(tokens, server, seed=5)
        status, answer = ask(server, logits_processors=[{"name": "acme", "args": args}], **more)
    assert status == 400
    assert answer["error"]["param"] == "logits_processors"
    assert answer["error"]["message"] == f"logits_processors: the args of acme are wrong: {told}"
    assert beside.result() == tokens(server, seed=5)


def test_a_processor_that_is_not_loaded_is_refused_by_name(server):
    status, answer = ask(server, logits_processors=["acme-other"])
    assert status == 400
    assert answer["error"]["param"] == "logits_processors"
    assert answer["error"]["message"].endswith("which is not loaded; this server has: acme, acme-faulty")


PAIRS = {"pairs": [["sea", "sea"], ["sea", "cat"]]}


def test_an_io_processor_makes_prompts_of_data_and_an_answer_of_vectors(server):
    def pool(**body):
        with server.ask("POST", "/pooling", body) as response:
            return response.status, json.loads(response.read())

    status, answer = pool(io_processor="acme", data=PAIRS, encoding_format="float", use_activation=True)
    assert status == 200, answer
    assert answer["data"]["model"].endswith("acme")
    same, other = answer["data"]["distances"]
    assert same == 0 < other
    for wrong, param in (
        ({"io_processor": "acme", "data": {"pears": []}}, "data"),
        ({"io_processor": "acme", "data": {"pairs": []}}, "data"),
        ({"io_processor": "acme-faulty", "data": {}}, "io_processor"),
        ({"input": "a", "data": {}}, "data"),
        ({"io_processor": "acme", "input": "a", "data": {}}, "input"),
        ({"io_processor": "acme", "data": PAIRS, "dimensions": 4}, "dimensions"),
        ({"io_processor": "acme", "data": PAIRS, "prompt_name": ""}, "prompt_name"),
        ({"io_processor": "acme", "data": PAIRS, "add_special_tokens": False}, "add_special_tokens"),
        ({"io_processor": "acme", "data": PAIRS, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"io_processor": "acme", "data": PAIRS, "returned_token_ids": [0]}, "returned_token_ids"),
        ({"io_processor": "acme", "data": PAIRS, "encoding_format": "base64"}, "encoding_format"),
    ):
        status, answer = pool(**wrong)
        assert (status, answer["error"]["param"]) == (400, param), answer


def test_stat_loggers_have_seen_the_engine(server):
    tokens(server)
    with server.ask("GET", "/v1/models") as response:
        assert response.status == 200
    server.wait_for_text("acme has seen tokens")


def test_llm_has_the_same_and_a_platform_computes(model, monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    params = SamplingParams(
        max_tokens=16, seed=3, logits_processors=[LogitsProcessorParams("acme", {"step": 2}), "acme-faulty"]
    )
    with LLM(str(model), plugin="acme", platform="acme", threads=1) as llm:
        assert llm.get_facts()["device"] == "acme"
        with pytest.raises(InvalidRequest, match="acme-faulty, which is not loaded; this server has: acme"):
            llm.generate("Once", params)
        one = SamplingParams(max_tokens=16, seed=3, logits_processors=params.logits_processors[:1])
        assert all(token % 2 == 0 for token in llm.generate("Once", one)[0].outputs[0].token_ids)


# The banner's line is that of LLM's facts, and the command line's options are those of other plugins.
@pytest.mark.nightly
def test_a_platform_of_the_command_line_computes(model, tmp_path_factory):
    options = (str(model), "--plugin", "acme", "--platform", "acme", "--no-standby-workers")
    server = ServerProcess(tmp_path_factory.mktemp("p"), *options, import_path=PACKAGE)
    try:
        server.wait_ready()
        assert tokens(server, temperature=0, max_tokens=3)
        assert "runs on        acme" in server.stderr()
    finally:
        server.close()


def test_processors_that_exclude_what_other_rules_allow_end_their_request(server):
    status, _ = ask(server, logits_processors=[EVERY_THIRD], allowed_token_ids=[3, 6, 9])
    assert status == 500
    server.wait_for_text("logits processors exclude every token that the request's other rules allow")
    assert set(tokens(server, logits_processors=[EVERY_THIRD], allowed_token_ids=[3, 4, 6, 7])) == {4, 7}
