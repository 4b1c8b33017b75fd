"""Beam search and best_of with the demo model: a worker is killed meanwhile, and no byte changes."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from paged_serve import LLM, SamplingParams

from ..serving import Server

PROMPT = "Once upon a time there was a small ship on the sea, and its captain said"
WIDTH, LENGTH = 4, 160
SEARCH = {"prompt": PROMPT, "use_beam_search": True, "n": WIDTH, "max_tokens": LENGTH, "ignore_eos": True}


def num_prompt_tokens(server: Server) -> float:
    lines = server.metrics().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("paged:prompt_tokens_total"))


@pytest.mark.parametrize(
    "module",
    [pytest.param("paged_serve.workers.process", marks=pytest.mark.nightly), "paged_serve.engine_core.process"],
)
def test_a_beam_search_over_http_survives_the_death_of_a_process_byte_for_byte(server, module):
    before = num_prompt_tokens(server)
    status, undisturbed = server.post("/v1/completions", SEARCH)
    assert status == 200, undisturbed
    assert len({choice["text"] for choice in undisturbed["choices"]}) == WIDTH
    prompt_len = undisturbed["usage"]["prompt_tokens"]
    searched = num_prompt_tokens(server) - before
    assert searched == prompt_len + (LENGTH - 1) * WIDTH, "a step computes one token for each beam"

    is_disturbed = False
    with ThreadPoolExecutor(1) as pool:
        while not is_disturbed:  # a search may end while this process waits for a core
            before = num_prompt_tokens(server)
            [victim] = server.children(module)
            running = pool.submit(server.post, "/v1/completions", SEARCH)
            while num_prompt_tokens(server) < before + 10 * WIDTH and not running.done():
                pass
            is_disturbed = not running.done()
            if is_disturbed:
                victim.kill()
                victim.wait(60)
            status, disturbed = running.result()
            assert status == 200, disturbed
            assert disturbed["choices"] == undisturbed["choices"]


class Bar:
    """A progress bar that kills a process when the first prompt has its output."""

    def __init__(self, pid: int, **_options: object):
        self.pid = pid

    def update(self, _count: int) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self.pid = 0

    def set_postfix_str(self, *_text: object, **_options: object) -> None: ...

    def close(self) -> None: ...


@pytest.mark.nightly
def test_best_of_with_llm_survives_the_death_of_a_worker_byte_for_byte():
    several = SamplingParams(n=2, best_of=5, temperature=1.0, seed=3, max_tokens=700, ignore_eos=True)
    short = SamplingParams(n=1, best_of=2, temperature=1.0, seed=4, max_tokens=4)
    with LLM(max_num_seqs=8, num_blocks=512, threads=1) as llm:
        [undisturbed, _] = llm.generate([PROMPT, "x"], [several, short], use_tqdm=False)
        pid = next(pid for name, pid in llm._engine.supervisor.pids.items() if name.startswith("worker"))
        [disturbed, _] = llm.generate([PROMPT, "x"], [several, short], use_tqdm=partial(Bar, pid))
        assert pid not in llm._engine.supervisor.pids.values()
    assert len(undisturbed.outputs) == 2
    for each, before in zip(disturbed.outputs, undisturbed.outputs, strict=True):
        assert (each.token_ids, each.cumulative_logprob) == (before.token_ids, before.cumulative_logprob)
