"""Speculation in real processes: the bytes of plain decoding, also with kills, and drafts that are accepted."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder

from ...workers.tiny_models.made_eagle3 import write_head_for
from ...workers.tiny_models.made_mtp import made_chain
from ...workers.tiny_models.tiny_lfm2 import write_tiny_lfm2
from ..serving import serving

TALE = "The fox had a red tail. The fox had a long nose. " * 5
PROMPTS = [TALE + "The fox", "one two three four one two three four one two", "The capital of Japan is", TALE]
SCHEMA = {
    "type": "object",
    "properties": {"name_of_the_city": {"type": "string", "maxLength": 8}, "number": {"type": "integer"}},
    "required": ["name_of_the_city", "number"],
    "additionalProperties": False,
}


def bodies():
    for index, prompt in enumerate(PROMPTS * 2):
        body = {"prompt": prompt, "max_tokens": 48, "seed": index, "temperature": 0.9 * (index % 3), "logprobs": 2}
        yield body | ({"presence_penalty": 0.5} if index % 2 else {"n": 2, "ignore_eos": True})
    yield {"prompt": "As JSON:", "max_tokens": 48, "seed": 1, "structured_outputs": {"json": SCHEMA}}


def complete_all(server, on_half=None):
    """The choices of all bodies at once; `on_half` is called once half of them are there."""
    num_left = [len(list(bodies())) // 2]
    lock = threading.Lock()

    def complete(body):
        status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        with lock:
            num_left[0] -= 1
            if on_half is not None and num_left[0] == 0:
                on_half()
        return answer["choices"]

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(complete, bodies()))


def counted(server, kind="accepted"):
    """The drafts that were accepted, or of another kind."""
    pattern = rf"^paged:spec_decode_num_{kind}_tokens_total\S* (\S+)"
    return float(re.search(pattern, server.metrics(), re.MULTILINE)[1])


def model_of(name, folder):
    """Options for the demo model, or another with its tokenizer: recurrent with outputs that repeat, or with a head."""
    if name == "demo":
        return ()
    sizes = {"max_position_embeddings": 1400, "vocab_size": 1024}
    if name == "lfm2":
        write_tiny_lfm2(folder, **sizes, scale=0.12)
    else:
        made_chain(name, folder, **sizes)
    return "--model", str(folder), "--tokenizer", str(demo_model_folder())


def draft_folder(method, folder):
    """The model drafts for itself; a head with random weights is almost never right."""
    return demo_model_folder() if method == "draft" else write_head_for(demo_model_folder(), folder / "head")


NIGHTLY_CASES = (
    *(("demo", "2", "ngram"), ("lfm2", "1", "auto"), ("lfm2", "2", "ngram"), ("demo", "2", "draft")),
    *(("demo", "1", "eagle3"), ("demo", "2", "eagle3"), ("glm4-moe", "2", "mtp"), ("qwen3-next", "1", "mtp")),
)
NIGHTLY = [pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY_CASES]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("model", "ranks", "method"), [("demo", "1", "ngram"), *NIGHTLY])
def test_answers_are_those_without_drafts_while_processes_are_killed(server, model, ranks, method, tmp_path):
    options = ("--max-num-seqs", "4", *model_of(model, tmp_path))
    drafts = ("--speculative", method, "--no-speculative-adaptive")  # independent of how long steps take
    kind = "draft" if method == "eagle3" else "accepted"
    if method in ("draft", "eagle3"):
        drafts += "--draft-model", str(draft_folder(method, tmp_path))
    with nullcontext(server) if model == "demo" else serving(*options) as plain:
        expected = complete_all(plain)
    with serving(*options, *drafts, "--tp", ranks) as drafting:
        assert complete_all(drafting) == expected
        assert counted(drafting, kind) > 20
        for module in ("paged_serve.workers.process", "paged_serve.engine_core.process"):
            assert complete_all(drafting, drafting.children(module)[0].kill) == expected


# In the fast tests, workers/speculation/heads/test_mtp.py loads such heads, and compares bytes.
@pytest.mark.parametrize("method", ["draft", pytest.param("mtp", marks=pytest.mark.nightly)])
def test_a_server_drafts_with_the_model_of_its_command_line(server, method, tmp_path):
    """The model drafts for itself, or its head knows the text: drafts are right."""
    model = model_of("demo" if method == "draft" else "glm4-moe", tmp_path)
    drafts = f"draft:{demo_model_folder()}" if method == "draft" else method
    body = {"prompt": TALE, "max_tokens": 48, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    found = []
    for options in ((), ("--speculative", drafts)):
        with serving(*model, *options) if model or options else nullcontext(server) as asked:
            status, answer = asked.post("/v1/completions", body)
            assert status == 200, answer
            found.append(answer["choices"])
            num_accepted = counted(asked)
    assert found[0] == found[1]
    assert num_accepted > 0


OFFLINE = {"seed": 7, "max_tokens": 40, "logprobs": 1}


def plain_answer(server, prompt, temperature):
    body = {"prompt": prompt, "temperature": temperature, **OFFLINE, "return_token_ids": True}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    [choice] = answer["choices"]
    return choice["token_ids"], choice["text"], choice["logprobs"]["token_logprobs"]


def logprobs_of(output):
    return [found[token].logprob for token, found in zip(output.token_ids, output.logprobs, strict=True)]


# Fast tests of servers draft with ngram and draft.
@pytest.mark.parametrize("methods", [("suffix", "eagle3"), pytest.param(("ngram", "draft"), marks=pytest.mark.nightly)])
def test_offline_answers_are_those_of_a_server_without_drafts(server, methods, tmp_path):
    temperatures = (0.0, 0.0, 0.7, 1.0)
    expected = [plain_answer(server, *each) for each in zip(PROMPTS, temperatures, strict=True)]
    params = [SamplingParams(temperature=each, **OFFLINE) for each in temperatures]
    for method in methods:
        folder = f":{draft_folder(method, tmp_path)}" if method in ("draft", "eagle3") else ""
        with LLM(speculative=method + folder) as llm:
            outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
        found = [
            (
                one.token_ids,
                one.text,
                [row[token].logprob for token, row in zip(one.token_ids, one.logprobs, strict=True)],
            )
            for one in outputs
        ]
        assert found == expected, method


@pytest.mark.nightly
def test_offline_answers_with_the_head_of_a_checkpoint_are_those_without_drafts(tmp_path):
    _, model, _, tokenizer = model_of("glm4-moe", tmp_path)
    params = [SamplingParams(temperature=t, seed=7, max_tokens=40, logprobs=1) for t in (0.0, 0.0, 0.7, 1.0)]
    found = []
    for method in ("off", "mtp"):
        with LLM(model, tokenizer=tokenizer, speculative=method) as llm:
            outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
            found.append([(each.token_ids, each.text, each.logprobs) for each in outputs])
            num_accepted = llm.get_metrics()["accepted_tokens"]
    assert found[0] == found[1]
    assert num_accepted > 0
