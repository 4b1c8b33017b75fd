"""LoRA adapters in real processes: bytes alone and mixed, kills, tensor parallelism, loading while the server runs."""

import asyncio
import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from paged_serve import LLM, AsyncLLM, BeamSearchParams, InvalidRequest, LoRARequest, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder

from ...workers.tiny_models.made_adapters import make_adapter
from ..serving import serving

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")
NAMES = ("demo", "first", "second", "third")
PROMPT = "Once upon a time there was a fox"
CROWDED = ("--max-loras", "2", "--max-num-seqs", "4")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Three adapters of the demo model, as name to folder."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(NAMES[1:]):
        make_adapter(folder / name, demo_model_folder(), seed=seed, rank=4 << seed)
    return {name: str(folder / name) for name in NAMES[1:]}


def options(adapters, *more):
    return (*(word for name, path in adapters.items() for word in ("--lora", f"{name}={path}")), *more)


def body(model, index=0, **fields):
    sampling = {"temperature": 0.9 * (index % 2), "seed": index, "logprobs": 1, "ignore_eos": True}
    return {"model": model, "prompt": PROMPT[: 8 + index], "max_tokens": 48, **sampling, **fields}


def complete(server, request):
    status, answer = server.post("/v1/completions", request)
    assert status == 200, answer
    return answer["choices"]


def complete_all(server, on_half=None):
    """Twelve requests of all models at once; `on_half` is called once half of them are answered."""
    num_left, lock = [6], threading.Lock()

    def one(index):
        choices = complete(server, body(NAMES[index % 4], index))
        with lock:
            num_left[0] -= 1
            if on_half is not None and not num_left[0]:
                on_half()
        return choices

    with ThreadPoolExecutor(12) as pool:
        return list(pool.map(one, range(12)))


@pytest.fixture(scope="module")
def server(adapters, tmp_path_factory):
    """A server of the adapters, two of which have a place at a time, and of one that is not of its model."""
    odd = tmp_path_factory.mktemp("odd")
    make_adapter(odd, demo_model_folder(), targets=("q_proj",))
    file = odd / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"layers.0", b"layers.9"))
    with serving(*options(adapters, *CROWDED, "--lora", f"odd={odd}", "--max-restarts", "100")) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server):
    """The answers, each computed while nothing else runs."""
    return [complete(server, body(NAMES[index % 4], index)) for index in range(12)]


@pytest.fixture(scope="module")
def llm():
    with LLM(enable_lora=True, max_loras=2, standby_workers=False) as llm:
        yield llm


def test_each_adapter_changes_the_answer(alone):
    assert len({choices[0]["text"] for choices in alone[4:8]}) == 4


def check_kills(server, alone):
    assert complete_all(server) == alone
    for module in ("paged_serve.workers.process", "paged_serve.engine_core.process"):
        assert complete_all(server, server.children(module)[0].kill) == alone


@pytest.mark.timeout(600)
def test_answers_are_those_alone_while_adapters_share_places_and_processes_are_killed(server, alone):
    check_kills(server, alone)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_answers_are_those_of_another_server_where_adapters_have_more_room(adapters, ranks):
    with serving(*options(adapters)) as roomy:
        alone = [complete(roomy, body(NAMES[index % 4], index)) for index in range(12)]
    with serving(*options(adapters, *CROWDED, "--tp", ranks)) as crowded:
        check_kills(crowded, alone)


def test_clients_load_unload_and_replace_adapters_while_others_run(two_frontends, adapters, alone):
    server = two_frontends
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(complete, server, body("demo", 0))
        load = {"lora_name": "first", "lora_path": adapters["first"]}
        assert text_of(server, "/v1/load_lora_adapter", load) == "Success: LoRA adapter 'first' added successfully."
        assert complete(server, body("first", 1)) == alone[1]
        assert running.result() == alone[0]
        assert text_of(server, "/v1/unload_lora_adapter", {"lora_name": "first"}).startswith("Success")
        for _ in range(8):  # whichever frontend answers
            assert server.post("/v1/completions", body("first", 1))[0] == 404


def test_an_adapter_of_another_model_ends_only_its_requests(server, alone):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(complete, server, body("demo", 0))
        status, answer = server.post("/v1/completions", body("odd", 1))
        assert status == 400
        assert answer["error"]["message"].startswith("LoRA adapter 'odd' was not loaded: ")
        assert answer["error"]["param"] == "model"
        assert running.result() == alone[0]


def test_a_program_chooses_an_adapter_for_each_prompt(llm, requests, alone):
    params = SamplingParams(temperature=0, seed=0, max_tokens=48, ignore_eos=True)
    outputs = llm.generate([PROMPT[:8]] * 4, params, lora_request=requests)
    texts = [output.outputs[0].text for output in outputs]
    assert texts[0] == alone[0][0]["text"]
    assert len(set(texts)) == 4
    assert llm.generate(PROMPT[:8], params, lora_request=requests[2])[0].outputs[0].text == texts[2]
    narrow = BeamSearchParams(beam_width=1, max_tokens=8, ignore_eos=True)  # that is greedy
    beams = llm.beam_search([PROMPT[:8]] * 4, narrow, lora_request=requests)
    found = [each.sequences[0].tokens[-8:] for each in beams]
    assert found == [output.outputs[0].token_ids[:8] for output in outputs]
    with pytest.raises(InvalidRequest, match=r"LoRA adapter 'x': /none/adapter_config\.json"):
        llm.generate(PROMPT, params, lora_request=LoRARequest("x", 9, "/none"))


@pytest.fixture(scope="module")
def vectors(server):
    """The vector of PROMPT by each model, over HTTP."""
    found = [server.post("/v1/embeddings", {"model": name, "input": PROMPT})[1] for name in NAMES]
    return [answer["data"][0]["embedding"] for answer in found]


@pytest.fixture(scope="module")
def requests(adapters):
    return [None, *(LoRARequest(name, number, path) for number, (name, path) in enumerate(adapters.items(), 1))]


def test_the_vectors_of_adapters_have_the_same_bits_over_http_and_from_llm(llm, server, vectors, requests):
    status, scored = server.post("/score", {"model": "first", "text_1": PROMPT, "text_2": "The sea"})
    assert status == 200, scored
    assert [each.outputs.embedding for each in llm.embed([PROMPT] * 4, lora_request=requests)] == vectors
    [score] = llm.score(PROMPT, "The sea", lora_request=requests[1])
    assert score.outputs.score == scored["data"][0]["score"] != llm.score(PROMPT, "The sea")[0].outputs.score
    assert len(set(map(tuple, vectors))) == 4


@pytest.mark.nightly  # frontend/offline/test_async_llm_pooling.py has AsyncLLM's part
def test_the_vectors_of_adapters_have_the_same_bits_from_async_llm(vectors, requests):
    async def encode(llm, adapter):
        return [each async for each in llm.encode(PROMPT, pooling_task="embed", lora_request=adapter)]

    async def encode_all():
        async with AsyncLLM(enable_lora=True, standby_workers=False) as other:
            outputs = await asyncio.gather(*(encode(other, each) for each in requests))
            return [one.outputs.data.tolist() for [one] in outputs]

    assert asyncio.run(encode_all()) == vectors


def text_of(server, path, request):
    """The answer of a route that answers with a text."""
    asked = urllib.request.Request(
        server.url + path, json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read().decode()
