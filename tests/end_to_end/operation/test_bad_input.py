"""Bad input gets a clear answer and affects no other request: eight streams run meanwhile, unchanged."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from ...frontend.http.connections.most_work import MOST_WORK
from ...frontend.http.routes.bad_bodies import BAD as HTTP_BAD
from ..serving import Server

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
PROMPT = {"model": "demo", "prompt": "Hello"}

# (path, body, status, words that the message must contain)
BAD = [
    ("/v1/completions", b"{not json", 400, ["JSON"]),
    ("/v1/completions", b"", 400, ["JSON"]),
    ("/v1/completions", b"[1, 2]", 400, []),
    ("/v1/completions", b"\xff\xfe", 400, []),
    ("/v1/completions", PROMPT | {"model": "gpt-9"}, 404, ["gpt-9", "demo"]),
    ("/v1/completions", {"model": "demo"}, 400, ["prompt"]),
    ("/v1/completions", PROMPT | {"temprature": 1}, 400, ["temprature", "temperature"]),
    ("/v1/completions", PROMPT | {"temperature": 9}, 400, ["temperature", "9", "2"]),
    ("/v1/completions", PROMPT | {"temperature": "hot"}, 400, ["temperature"]),
    ("/v1/completions", PROMPT | {"top_p": 0}, 400, ["top_p"]),
    ("/v1/completions", PROMPT | {"n": 1_000_000}, 400, ["n", "128"]),
    ("/v1/completions", PROMPT | {"max_tokens": 0}, 400, ["max_tokens"]),
    ("/v1/completions", PROMPT | {"max_tokens": 10**30}, 400, ["max_tokens"]),
    ("/v1/completions", PROMPT | {"logprobs": 100_000}, 400, ["logprobs"]),
    ("/v1/completions", PROMPT | {"stop": ["x"] * 99}, 400, ["stop", "16"]),
    ("/v1/completions", PROMPT | {"logit_bias": {"999999": 1}}, 400, ["logit_bias", "999999"]),
    ("/v1/completions", PROMPT | {"prompt": [5, 999_999]}, 400, ["999999"]),
    ("/v1/completions", PROMPT | {"prompt": [-1]}, 400, ["-1"]),
    ("/v1/completions", PROMPT | {"prompt": []}, 400, ["prompt"]),
    ("/v1/completions", PROMPT | {"prompt": "word " * 50_000}, 400, ["maximum context length"]),
    ("/v1/completions", PROMPT | {"seed": 2**70}, 400, ["seed"]),
    (
        "/v1/completions",
        PROMPT | {"structured_outputs": {"regex": "xqxqx"}, "bad_words": ["qx"]},  # known at the third token
        400,
        ["bad_words", "other rules"],
    ),
    ("/v1/chat/completions", CHAT | {"messages": []}, 400, ["messages"]),
    ("/v1/chat/completions", CHAT | {"messages": "Hello"}, 400, ["messages"]),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": 7}]}, 400, ["content"]),
    ("/v1/chat/completions", CHAT | {"top_logprobs": 3}, 400, ["logprobs"]),
    ("/tokenize", {"model": "demo"}, 400, []),
    ("/detokenize", {"model": "demo", "tokens": [10**9]}, 400, []),
]


def test_each_bad_request_is_answered_clearly_while_streams_run_undisturbed(server: Server):
    async def stream(client: openai.AsyncOpenAI, index: int) -> str:
        chunks = await client.completions.create(
            model="demo",
            prompt=f"Story {index}:",
            max_tokens=400,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def attack() -> list[tuple[int, dict]]:
        return [await asyncio.to_thread(server.post, path, body) for path, body, _, _ in BAD]

    async def streams(attacked: bool) -> tuple[list[str], list[tuple[int, dict]]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            tasks = [asyncio.create_task(stream(client, index)) for index in range(8)]
            answers = await attack() if attacked else []
            return await asyncio.gather(*tasks), answers

    undisturbed, _ = asyncio.run(streams(attacked=False))
    disturbed, answers = asyncio.run(streams(attacked=True))
    for (path, body, status, named), (answered, error) in zip(BAD, answers, strict=True):
        context = f"{path} {str(body)[:80]}: {answered} {json.dumps(error)[:300]}"
        assert answered == status, context
        assert set(error["error"]) == {"message", "type", "param", "code"}, context
        exceeded = "maximum context length" in error["error"]["message"]
        assert error["error"]["code"] == ("context_length_exceeded" if exceeded else status), context
        assert all(word in error["error"]["message"] for word in named), context
    assert disturbed == undisturbed


MAX_GROWTH_BYTES = 64 << 20


def hostile_bodies() -> list[tuple[str, bytes]]:
    """The bodies that tests of the HTTP side refuse, those that cause the most work, and truncations of each."""
    rows = [(path, body) for path, body, *_ in [*BAD, *HTTP_BAD]]
    rows += [(path, body) for path, body in MOST_WORK if path != "/v1/completions" or body.get("max_tokens")]
    rows += [("/tokenize", {"prompt": "a b " * 10**power, "return_token_strs": True}) for power in range(1, 6)]
    rows += [("/detokenize", {"tokens": [5] * 10**power}) for power in range(1, 6)]
    rows += [("/v1/completions", b"[" * 10**power) for power in range(1, 7)]
    rows += [("/v1/chat/completions", b'{"messages":' + b'[{"content":' * 10**power) for power in range(1, 5)]
    compact = json.JSONEncoder(separators=(",", ":")).encode
    bodies = [(path, body if isinstance(body, bytes) else compact(body).encode()) for path, body in rows]
    return [(path, body) for path, body in bodies if len(body) <= 4 << 20]  # larger ones are refused before they arrive


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.nightly)], ids=["every eighth", "all"])
def test_two_hundred_hostile_bodies_disturb_no_stream_and_take_little_memory(server: Server, step: int):
    bodies = hostile_bodies()
    assert len(bodies) >= 200
    bodies = bodies[::step]
    over = threading.Event()
    body = {"model": "demo", "max_tokens": 100, "temperature": 0.9, "ignore_eos": True}

    def story(index: int) -> str:
        status, answer = server.post("/v1/completions", body | {"prompt": f"Story {index}:", "seed": index})
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def stories(index: int) -> set[str]:
        texts = {story(index)}
        while not over.is_set():
            texts.add(story(index))
        return texts

    [frontend] = server.children("paged_serve.frontend.http.server")
    logged = len(server.output())
    with ThreadPoolExecutor(8) as threads:
        alone = [*threads.map(story, range(8))]
        for path, data in bodies[::10]:  # imports, compilations and processes of the first requests
            server.post(path, data)
        before, most = frontend.memory_info().rss, 0
        together = [threads.submit(stories, index) for index in range(8)]
        try:
            for path, data in bodies:
                status, answer = server.post(path, data)
                assert status < 500, f"{path} {data[:80]!r}: {status} {json.dumps(answer)[:300]}"
                most = max(most, frontend.memory_info().rss)
        finally:
            over.set()
        assert [stream.result() for stream in together] == [{text} for text in alone]
    grown = most - before
    print(f"{len(bodies)} bodies: the frontend's {before >> 20} MB grew by {grown >> 20} MB")
    assert grown < MAX_GROWTH_BYTES
    assert frontend.is_running()
    assert "Traceback" not in server.output()[logged:]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("DELETE", "/v1/models", 405)])
def test_unknown_routes_and_methods_use_the_one_error_shape(server: Server, method: str, path: str, status: int):
    import urllib.error
    import urllib.request

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(server.url + path, method=method), timeout=60)
    with caught.value as answer:
        assert answer.code == status
        assert json.loads(answer.read())["error"]["code"] == status


RULES = {"structured_outputs": {"regex": "(ab|cd|xy){2,9}"}, "bad_words": ["cd", "a", "ba"], "repetition_penalty": 1.3}


def test_a_choice_that_its_rules_end_ends_no_other_and_loses_no_text(server: Server):
    def texts() -> tuple[dict[int, str], set[int]]:
        """Of each choice the text, and the choices that were finished."""
        found, finished = dict.fromkeys(range(3), ""), set()

        def read(client: openai.OpenAI) -> None:
            asked = {"model": "demo", "prompt": "ab ab ab ab", "temperature": 0.8, "n": 3, "max_tokens": 23}
            for chunk in client.completions.create(**asked, stream=True, extra_body=RULES):
                [choice] = chunk.choices
                found[choice.index] += choice.text
                finished.update({choice.index} if choice.finish_reason else ())

        told = pytest.raises(openai.APIError, match="bad_words forbids every token")
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client, told:
            read(client)
        return found, finished

    first = texts()
    assert 0 < len(first[1]) < 3, "the case is none"
    assert all(texts() == first for _ in range(4))
