"""LLM with the demo model over real processes: the same bytes alone, in a batch, twice, and after a kill."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from paged_serve import LLM, AsyncClient, Client, RequestOutput, SamplingParams
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.transport.run_dir import find_run_dirs

ROOT = Path(__file__).parents[3]
PROMPTS = ["Once upon a time", "The sea", "A sailor named Frank", "In the morning the cat", "What is a tree?", "x"]
GREEDY = SamplingParams(max_tokens=24, temperature=0)
SAMPLED = SamplingParams(max_tokens=24, temperature=1.0, seed=7)


@pytest.fixture(scope="module")
def llm():
    with LLM(max_num_seqs=8, num_blocks=256, threads=1) as llm:
        yield llm


def tokens(outputs):
    return [sequence.token_ids for output in outputs for sequence in output.outputs]


def test_greedy_output_is_reproducible(llm):
    first, second = (llm.generate(PROMPTS, GREEDY) for _ in range(2))
    assert [(o.outputs[0].text, o.outputs[0].token_ids) for o in first] == [
        (o.outputs[0].text, o.outputs[0].token_ids) for o in second
    ]
    assert all(o.finished and o.outputs[0].finish_reason in ("length", "stop") for o in first)
    assert [o.prompt for o in first] == PROMPTS


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_prompt_gives_the_same_output_alone_and_in_a_batch(llm, params):
    together = tokens(llm.generate(PROMPTS, params))
    llm.reset_prefix_cache()
    assert [tokens(llm.generate([prompt], params))[0] for prompt in PROMPTS] == together


@dataclass
class Ended:
    """What an engine without kernels has answered before it was closed, and its processes."""

    together: list[RequestOutput]
    alone: list[RequestOutput]
    facts: dict[str, str]
    pids: list[int]
    run_dir: str


@pytest.fixture(scope="module")
def ended():
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=2)
    with LLM(max_num_seqs=8, num_blocks=256, cpu_isa="torch") as llm:
        pids, run_dir = list(llm._engine.supervisor.pids.values()), llm._engine.supervisor.run_dir
        together, facts = llm.generate(PROMPTS, params), llm.get_facts()
        llm.reset_prefix_cache()
        alone = [llm.generate([prompt], params)[0] for prompt in PROMPTS]
    return Ended(together, alone, facts, pids, run_dir)


def test_without_kernels_a_batch_changes_no_output_and_the_facts_state_the_slowdown(ended):
    assert ended.facts["kernels"] == "torch"
    assert ended.facts["slow"].startswith("--cpu-isa torch: torch multiplies one row at a time")
    assert ended.facts["remedy"]
    assert tokens(ended.together) == tokens(ended.alone)
    assert [each.outputs[0].logprobs for each in ended.together] == [each.outputs[0].logprobs for each in ended.alone]


def test_nothing_is_left_after_close(ended):
    assert len(ended.pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in ended.pids)
    assert not Path(ended.run_dir).exists()


def test_text_is_the_tokenizers_decoding_of_the_tokens(llm):
    (output,) = llm.generate(["The sea"], GREEDY)
    ids = output.outputs[0].token_ids
    shown = ids[:-1] if output.outputs[0].finish_reason == "stop" else ids
    assert llm.get_tokenizer().decode(output.prompt_token_ids + shown) == output.prompt + output.outputs[0].text


def test_a_prompt_of_tokens_is_the_same_as_its_text(llm):
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    assert tokens(llm.generate([ids], GREEDY)) == tokens(llm.generate([PROMPTS[0]], GREEDY))


def test_three_sequences_differ_and_are_reproducible(llm):
    params = SamplingParams(n=3, max_tokens=16, temperature=1.0, seed=3)
    first, second = (llm.generate(["Hello, my name is"], params)[0] for _ in range(2))
    assert tokens([first]) == tokens([second])
    assert len({tuple(ids) for ids in tokens([first])}) == 3
    (alone,) = llm.generate(["Hello, my name is"], SamplingParams(max_tokens=16, temperature=1.0, seed=3))
    assert alone.outputs[0].token_ids == first.outputs[0].token_ids


def test_greedy_sequences_are_equal(llm):
    (both,) = llm.generate(PROMPTS[:1], SamplingParams(n=2, max_tokens=24, temperature=0))
    assert tokens([both]) == tokens(llm.generate(PROMPTS[:1], GREEDY)) * 2


def test_requests_without_a_seed_are_reproducible(llm):
    params = SamplingParams(max_tokens=16, temperature=1.0)
    assert tokens(llm.generate(PROMPTS, params)) == tokens(llm.generate(PROMPTS, params))


def test_greedy_tokens_have_the_highest_logprob(llm):
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=3, prompt_logprobs=1, ignore_eos=True)
    (output,) = llm.generate(["Once upon a time"], params)
    sequence = output.outputs[0]
    assert len(sequence.logprobs) == len(sequence.token_ids) == 8
    for token, entry in zip(sequence.token_ids, sequence.logprobs, strict=True):
        assert next(iter(entry)) == token
        assert entry[token].rank == 1
        assert len(entry) == 3
        assert all(other.logprob <= entry[token].logprob <= 0 for other in entry.values())
    assert sequence.cumulative_logprob == pytest.approx(
        sum(entry[t].logprob for t, entry in zip(sequence.token_ids, sequence.logprobs, strict=True))
    )
    assert output.prompt_logprobs[0] is None
    assert [next(iter(entry)) for entry in output.prompt_logprobs[1:]] == output.prompt_token_ids[1:]


def test_named_tokens_have_logprobs_without_ranks(llm):
    [whole, named] = (
        llm.generate("The sea", SamplingParams(max_tokens=4, temperature=0, **fields))[0].outputs[0].logprobs
        for fields in ({"logprobs": 9}, {"logprob_token_ids": [3, 5]})
    )
    for best, found in zip(whole, named, strict=True):
        own = next(iter(best))
        assert [*found] == [own, *({3: 0, 5: 0}.keys() - {own})]
        assert found[own] == best[own]
        assert all(entry.rank is None for token, entry in found.items() if token != own)


def test_logprobs_do_not_depend_on_the_batch(llm):
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=1, logprobs=2)
    together = llm.generate(PROMPTS, params)
    alone = [llm.generate([prompt], params)[0] for prompt in PROMPTS]
    assert [o.outputs[0].logprobs for o in together] == [o.outputs[0].logprobs for o in alone]


def test_a_second_prompt_with_the_same_prefix_hits_the_cache(llm):
    llm.reset_prefix_cache()
    ids = llm.get_tokenizer().encode("Once upon a time there was a sailor. " * 8)
    cold, warm = (llm.generate([ids], GREEDY)[0] for _ in range(2))
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens >= 16
    assert tokens([cold]) == tokens([warm])


def test_a_stop_string_ends_the_text_before_it(llm):
    (whole,) = llm.generate(["Once upon a time"], GREEDY)
    stop = whole.outputs[0].text[12:17]
    params = SamplingParams(max_tokens=24, temperature=0, stop=[stop])
    (cut,) = llm.generate(["Once upon a time"], params)
    assert cut.outputs[0].text == whole.outputs[0].text[: whole.outputs[0].text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert llm.get_metrics()["num_running"] == 0


def test_a_chat_is_answered(llm):
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    one, same = (llm.chat(conversation, GREEDY)[0] for _ in range(2))
    assert one.outputs[0].text.strip()
    assert tokens([one]) == tokens([same])
    assert "capital of France" in one.prompt
    assert len(llm.chat([conversation] * 3, GREEDY, use_tqdm=False)) == 3


def test_a_refused_prompt_leaves_no_request_running(llm):
    with pytest.raises(InvalidRequest, match="vocabulary"):
        llm.generate([[1], [10**6]], SamplingParams(max_tokens=200, ignore_eos=True))
    (output,) = llm.generate(["The sea"], GREEDY)
    assert output.finished
    assert llm.get_metrics()["num_running"] == 0


def test_more_prompts_than_rows_are_answered_in_order(llm):
    params = SamplingParams(max_tokens=3, temperature=0)
    outputs = llm.generate([f"{number}" for number in range(60)], params)
    assert [output.prompt for output in outputs] == [f"{number}" for number in range(60)]


def test_other_programs_find_the_engine_and_get_the_same_tokens(llm):
    run_dir = llm._engine.supervisor.run_dir
    assert run_dir in find_run_dirs()
    prompt = llm.get_tokenizer().encode("The sea")
    with Client.connect(run_dir) as client:
        deltas = list(client.submit(prompt, GREEDY))
        left = client.submit(prompt, SamplingParams(max_tokens=1500, ignore_eos=True))
        next(left)
        del left
        assert wait_until(lambda: llm.get_metrics()["num_running"] == 0)
    assert [token for delta in deltas for token in delta.token_ids] == tokens(llm.generate([prompt], GREEDY))[0]

    async def stream():
        async with await AsyncClient.connect(run_dir) as client:
            return [token async for delta in client.submit(prompt, GREEDY) for token in delta.token_ids]

    assert asyncio.run(stream()) == tokens(llm.generate([prompt], GREEDY))[0]


LONG_RUN = SamplingParams(max_tokens=900, temperature=1.0, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def undisturbed(llm):
    return tokens(llm.generate(PROMPTS[:3], LONG_RUN))


@pytest.mark.parametrize("victim", ["worker", "engine-core"])
def test_killing_a_process_during_generation_changes_no_byte(llm, undisturbed, victim):
    pid = next(pid for name, pid in llm._engine.supervisor.pids.items() if name.startswith(victim))
    epoch = llm._client.limits.epoch
    running = [llm._client.submit(llm.get_tokenizer().encode(prompt), LONG_RUN) for prompt in PROMPTS[:3]]
    begun = [next(request).token_ids for request in running]  # all are running
    os.kill(pid, signal.SIGKILL)
    assert max(map(len, begun)) < 900
    disturbed = [
        ids + [token for delta in request for token in delta.token_ids]
        for ids, request in zip(begun, running, strict=True)
    ]
    assert (llm._client.limits.epoch != epoch) == (victim == "engine-core")
    assert pid not in llm._engine.supervisor.pids.values()
    assert disturbed == undisturbed


def test_the_engine_does_not_continue_a_program_that_is_suspended(llm):
    assert llm.config.server.wake_supervisor
    assert not llm._engine.supervisor.config.server.wake_supervisor


PROGRAM = """
import json, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # as from a terminal, wherever the tests were started
from paged_serve import LLM, SamplingParams
llm = LLM(max_num_seqs=2, num_blocks=64, threads=1)
print(json.dumps([llm._engine.supervisor.run_dir, list(llm._engine.supervisor.pids.values())]), flush=True)
params = SamplingParams(max_tokens=900, ignore_eos=True)
while True:
    llm.generate(["The sea"] * 20, params)
"""


@pytest.mark.parametrize(
    ("signal_number", "exit_code"),
    # test_forks.py kills a program.
    [(signal.SIGINT, -signal.SIGINT), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.nightly)],
)
def test_a_program_that_is_interrupted_or_killed_leaves_no_process(signal_number, exit_code):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        run_dir, pids = json.loads(program.stdout.readline())
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        time.sleep(0.5)  # generate is running by then; any moment would do
        program.send_signal(signal_number)
        _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == exit_code
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    if signal_number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        assert not Path(run_dir).exists()
    else:
        shutil.rmtree(run_dir)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
