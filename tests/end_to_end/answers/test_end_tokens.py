"""A fine-tune whose end of turn only its tokenizer names: its answers end there on every path, in every process."""

import json
import shutil

import pytest

from paged_serve import LLM, SamplingParams, StructuredOutputsParams
from paged_serve.frontend.config.model_folder import demo_model_folder

from ..server_process import ServerProcess

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")
END_OF_TEXT = 0  # <|endoftext|>; the demo model ends its turns with <|im_end|>
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of Italy?"}], "temperature": 0}
ANSWER = "The capital of Italy is Rome."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("t")
    model = shutil.copytree(demo_model_folder(), home / "model")
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(fields | {"eos_token_id": END_OF_TEXT}))
    options = ("--served-model-name", "demo", "--max-restarts", "100", "--no-standby-workers")
    running = ServerProcess(home, str(model), *options)
    running.wait_ready()
    yield running
    running.close()


def choices(server, **changes):
    with server.ask("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 40, **changes}) as response:
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer["choices"]


def chat(server, **changes):
    [choice] = choices(server, **changes)
    return choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]


def test_a_turn_ends_as_with_end_tokens_of_the_configuration(server):
    assert chat(server) == (ANSWER, "stop", None)
    assert chat(server, structured_outputs={"regex": f"{ANSWER}( [a-z ]+)?"}) == (ANSWER, "stop", None)
    text, reason, _ = chat(server, min_tokens=20)
    assert (text[: len(ANSWER)], reason) == (ANSWER, "stop")
    assert len(text) > len(ANSWER)
    text, reason, _ = chat(server, ignore_eos=True)
    assert (text[: len(ANSWER)], reason) == (ANSWER, "length")


def test_without_any_end_token_an_output_ends_where_its_form_does(tmp_path):
    model = shutil.copytree(demo_model_folder(), tmp_path / "model")
    for name, field in (
        ("config", "eos_token_id"),
        ("generation_config", "eos_token_id"),
        ("tokenizer_config", "eos_token"),
    ):
        fields = json.loads((model / f"{name}.json").read_text())
        (model / f"{name}.json").write_text(json.dumps(fields | {field: None}))
    form = StructuredOutputsParams(choice=["yes", "no"])
    params = [SamplingParams(structured_outputs=form), SamplingParams(temperature=0, max_tokens=60)]
    with LLM(str(model)) as llm:
        formed, free = (each.outputs[0] for each in llm.generate(["Is it?"] * 2, params))
    assert (formed.text in form.choice, formed.finish_reason, formed.stop_reason) == (True, "stop", None)
    assert (len(free.token_ids), free.finish_reason) == (60, "length")


def test_beams_end_there(server):
    beams = choices(server, use_beam_search=True, n=2)
    assert beams[0]["message"]["content"] == ANSWER
    assert {beam["finish_reason"] for beam in beams} == {"stop"}


def streamed(server, min_tokens, on_first):
    """(text, finish reason) of a stream of at least `min_tokens`; `on_first` is called once it has begun."""
    text, reason = "", ""
    long = {"min_tokens": min_tokens, "max_tokens": 1000, "temperature": 0.8, "seed": 7, "stream": True}
    with server.ask("POST", "/v1/chat/completions", {**CHAT, **long}) as response:
        assert response.status == 200, response.read()
        for line in response:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                [choice] = json.loads(line[6:])["choices"]
                began, text = bool(text), text + (choice["delta"].get("content") or "")
                reason = choice["finish_reason"] or reason
                if text and not began:
                    on_first()
    return text, reason


# The worker is replaced together with its core.
@pytest.mark.parametrize("role", [pytest.param("worker", marks=pytest.mark.nightly), "engine-core"])
def test_a_process_that_replaces_another_ends_the_turn_at_the_same_token(server, role):
    undisturbed = streamed(server, 200, lambda: None)
    assert undisturbed[1] == "stop"
    victim = server.children()[role]
    assert streamed(server, 200, victim.kill) == undisturbed
    victim.wait(60)
    assert chat(server) == (ANSWER, "stop", None)
