"""A model on each surface: LLM, client library and HTTP; processes are killed amid the requests of any of them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import psutil

from paged_serve import LLM
from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.messages.engine_core import Utility
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..chaos.faults import processes_of, run_dir
from .answers.test_determinism import Question, all_at_once, stats
from .server_process import ServerProcess

Moment = Literal["prompt", "decode"]
Answers = list[tuple[list[int], list[float]]]  # of each prompt: tokens and their logprobs

STEP_TOKENS = 16  # a prompt of hundreds of tokens takes dozens of steps
OPTIONS = {
    "tokenizer": str(demo_model_folder()),
    "num_blocks": 1000,
    "max_num_batched_tokens": STEP_TOKENS,
    "threads": 1,
    "max_restarts": 1000,
    "standby_workers": False,
}
PARAMS = SamplingParams(max_tokens=60, temperature=1.0, seed=3, logprobs=0, ignore_eos=True)
ATTEMPTS = 5  # on a busy machine a kill may come late
START_S = 300.0  # on a busy machine four ranks take minutes
IN_PROMPT, IN_DECODE = 8 * STEP_TOKENS, 20  # tokens computed at the time of the kill


class Surface(ABC):
    """An engine that answers over one surface. `watch` sees its statistics."""

    watch: Client

    @abstractmethod
    def ask(self, prompts: Sequence[list[int]]) -> Answers:
        """Answer all prompts, at once."""

    @abstractmethod
    def processes(self, role: str) -> list[psutil.Process]:
        """The running processes of a role: those of ranks in any order."""

    @abstractmethod
    def close(self) -> None: ...

    def kill_amid(self, prompts: Sequence[list[int]], roles: Sequence[str], moment: Moment) -> tuple[Answers, bool]:
        """Answer the prompts, whose prefix is cached, while a process of each role is killed.

        Returns also whether that was in time for `moment`.
        """
        before = stats(self.watch)
        victims = [self.processes(role)[-1] for role in roles]
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.ask, prompts)
            while not _has_come(moment, before, now := stats(self.watch)):
                if asked.done():
                    return asked.result(), False
            for victim in victims:
                victim.kill()
            answers = asked.result()
        assert now["prefix_cache_hits"] > before["prefix_cache_hits"]
        assert self.watch.utility(Utility.CHECK_INVARIANTS) == b"{}"
        generated = now["generation_tokens"] - before["generation_tokens"]
        return answers, generated == 0 if moment == "prompt" else generated < len(prompts) * (PARAMS.max_tokens or 0)


def check_kills(
    surface: Surface,
    prompts: Sequence[list[int]],
    first: list[int],
    expected: Answers,
    roles: Sequence[str],
    moments: Sequence[Moment],
) -> None:
    """Check that killed processes change no byte of `prompts`, which begin like `first`, at each of the moments."""
    for moment in moments:
        for _ in range(ATTEMPTS):
            surface.watch.utility(Utility.RESET_PREFIX_CACHE)
            surface.ask([first])
            answers, in_time = surface.kill_amid(prompts, roles, moment)
            assert answers == expected
            if in_time:
                break
        else:
            raise AssertionError(f"{ATTEMPTS} kills came too late")


def _has_come(moment: Moment, before: dict[str, int], now: dict[str, int]) -> bool:
    if moment == "prompt":
        return now["prompt_tokens"] - before["prompt_tokens"] >= IN_PROMPT
    return now["generation_tokens"] - before["generation_tokens"] >= IN_DECODE


class InProgram(Surface):
    """LLM."""

    def __init__(self, model: str, ranks: int):
        self._llm = LLM(model, tensor_parallel_size=ranks, **OPTIONS)
        self.watch = Client.connect(self._llm.run_dir)

    def ask(self, prompts: Sequence[list[int]]) -> Answers:
        outputs = [output.outputs[0] for output in self._llm.generate(list(prompts), PARAMS, use_tqdm=False)]
        return [
            (one.token_ids, [entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)])
            for one in outputs
        ]

    def processes(self, role: str) -> list[psutil.Process]:
        pids = self._llm._engine.supervisor.pids
        return [psutil.Process(pid) for name, pid in pids.items() if name.startswith(role)]

    def close(self) -> None:
        self.watch.close()
        self._llm.close()


class OverHTTP(Surface):
    """POST /v1/completions, one streamed request for each prompt."""

    def __init__(self, server: ServerProcess):
        self._server = server
        self.run_dir = str(run_dir(server))
        self.watch = Client.connect(self.run_dir)

    def ask(self, prompts: Sequence[list[int]]) -> Answers:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self._answer, prompts))

    def _answer(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        body = {
            "model": "demo",
            "prompt": prompt,
            **{name: getattr(PARAMS, name) for name in ("max_tokens", "temperature", "seed", "logprobs", "ignore_eos")},
            "return_token_ids": True,
            "stream": True,
        }
        token_ids, logprobs = list[int](), list[float]()
        with self._server.ask("POST", "/v1/completions", body) as response:
            assert response.status == 200, response.read()
            for line in response:
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    [choice] = json.loads(line[6:])["choices"]
                    token_ids += choice["token_ids"]
                    logprobs += choice["logprobs"]["token_logprobs"]
        return token_ids, logprobs

    def processes(self, role: str) -> list[psutil.Process]:
        return processes_of(self._server, role)

    def close(self) -> None:
        self.watch.close()


class OverZeroMQ(OverHTTP):
    """The client library."""

    def ask(self, prompts: Sequence[list[int]]) -> Answers:
        with Client.connect(self.run_dir) as client:
            answers = all_at_once(client, [Question(prompt, PARAMS) for prompt in prompts])
        return [(one.token_ids, [each.logprobs[0] for each in one.logprobs]) for [one] in answers]


@contextmanager
def serving_on(name: str, model: str, ranks: int, temporary: Path) -> Iterator[Surface]:
    """An engine that answers over the surface of this name: LLM, client or HTTP."""
    if name == "LLM":
        with closing(InProgram(model, ranks)) as surface:
            yield surface
        return
    named = {name.replace("_", "-"): value for name, value in OPTIONS.items() if value is not False}
    options = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    named_model = ("--model", model, "--served-model-name", "demo", "--tp", str(ranks))
    with closing(ServerProcess(temporary, *named_model, *options, "--no-standby-workers")) as server:
        server.wait_ready(START_S)
        with closing(OverHTTP(server) if name == "HTTP" else OverZeroMQ(server)) as surface:
            yield surface
