"""Plays a workload on an engine, and compares every output with that of an engine in which nothing disturbs."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paged_serve import AsyncLLM, CompletionOutput, LoRARequest, RequestOutput
from paged_serve.protocol.messages.engine_core import Utility

from .drawn_requests import DrawnRequest, Workload
from .engines import kill

IDLE_WITHIN_S = 120.0


@dataclass(slots=True)
class Player:
    """An engine, and the folders of the adapters by name."""

    llm: AsyncLLM
    adapters: dict[str, Path]
    has_priorities: bool = False
    seen: dict[int, int] = field(default_factory=dict)  # tokens so far, by the request's number
    kills: list[tuple[int, str]] = field(default_factory=list)  # (number of tokens, role), to come
    rng: random.Random = field(default_factory=random.Random)
    counts: Counter[str] = field(default_factory=Counter)

    async def alone(self, request: DrawnRequest, earlier: Sequence[RequestOutput]) -> RequestOutput:
        """The whole output. `earlier`: the outputs of the turn before."""
        return [output async for output in self._outputs(request, earlier, "")][-1]

    async def together(
        self, requests: Sequence[DrawnRequest], earlier: Sequence[RequestOutput], kills: Sequence[tuple[int, str]]
    ) -> list[RequestOutput]:
        """The outputs of all at once."""
        self.seen, self.kills = {}, sorted(kills)
        begun = [asyncio.Event() for _ in requests]
        tasks = [self._one(number, requests, earlier, begun) for number in range(len(requests))]
        return await asyncio.gather(*tasks)

    async def _one(
        self,
        number: int,
        requests: Sequence[DrawnRequest],
        earlier: Sequence[RequestOutput],
        begun: Sequence[asyncio.Event],
    ) -> RequestOutput:
        request = requests[number]
        if request.starts_with is not None:
            await begun[request.starts_with].wait()
        async for output in self._outputs(request, earlier, str(number)):
            self.seen[number] = sum(len(each.token_ids) for each in output.outputs)
            begun[number].set()
            self._kill(is_last=output.finished and len(self.seen) == len(requests))
            if request.leaves_after is not None and self.seen[number] >= request.leaves_after:
                await self.llm.abort(str(number))
        return output

    def _outputs(
        self, request: DrawnRequest, earlier: Sequence[RequestOutput], name: str
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt: dict[str, object] = {"cache_salt": request.cache_salt} if request.cache_salt else {}
        if request.previous is not None:
            before = earlier[request.previous]
            assert not isinstance(request.prompt, str)
            prompt["prompt_token_ids"] = [*before.prompt_token_ids, *before.outputs[0].token_ids, *request.prompt]
        else:
            prompt["prompt" if isinstance(request.prompt, str) else "prompt_token_ids"] = request.prompt
        adapter = LoRARequest(request.adapter, 1, str(self.adapters[request.adapter])) if request.adapter else None
        priority = request.priority if self.has_priorities else 0
        return self.llm.generate(prompt, request.params, name or None, priority=priority, lora_request=adapter)

    def _kill(self, *, is_last: bool) -> None:
        while not is_last and self.kills and self.kills[0][0] <= sum(self.seen.values()):
            role = self.kills[0][1]
            if not kill(self.llm, role, self.rng):
                return  # the engine is replacing it: tried again with the next output
            self.counts[f"{role} killed"] += 1
            self.kills.pop(0)

    async def check_nothing_is_left(self) -> None:
        """The engine's audit finds no fault, and every block is free once the prefix cache is empty."""
        async with asyncio.timeout(IDLE_WITHIN_S):
            while (stats := await self.llm.get_metrics())["num_running"] or stats["num_waiting"]:
                await asyncio.sleep(0.01)
            await self.llm._client.utility(Utility.CHECK_INVARIANTS)
            await self.llm.reset_prefix_cache()
            while (stats := await self.llm.get_metrics())["num_free_blocks"] != stats["num_blocks"]:
                await asyncio.sleep(0.01)  # blocks on their way to the tier


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Engines on which a request runs alone: one without adapters for those of the base model, and one with them."""

    base: Player
    adapted: Player

    async def alone(self, requests: Sequence[DrawnRequest], earlier: Sequence[RequestOutput]) -> list[RequestOutput]:
        """The whole output of each request, one after the other."""
        return [await (self.adapted if each.adapter else self.base).alone(each, earlier) for each in requests]


async def play(seed: int, workload: Workload, engine: Player, reference: Undisturbed) -> None:
    """Raises AssertionError naming the seed and the request whose output differs."""
    engine.rng = random.Random(f"victims {seed}")
    earlier: list[RequestOutput] = []
    for turn, requests in enumerate((workload.first, workload.second)):
        expected = await reference.alone(requests, earlier)
        num_tokens = sum(len(each.token_ids) for output in expected for each in output.outputs)
        kills = [(1 + int(each.share * num_tokens), each.role) for each in workload.kills] if not turn else []
        found = await engine.together(requests, earlier, kills)
        for request, whole, output in zip(requests, expected, found, strict=True):
            check(f"seed {seed}, turn {turn}, {request}", whole, output, may_be_cut=request.leaves_after is not None)
            engine.counts["aborted"] += output.outputs != whole.outputs
        engine.counts.update(requests=len(requests), tokens=num_tokens, turns=bool(requests))
        engine.counts["structured"] += sum(request.params.structured_outputs is not None for request in requests)
        engine.counts["with adapters"] += sum(bool(request.adapter) for request in requests)
        earlier = expected


def check(context: str, whole: RequestOutput, found: RequestOutput, *, may_be_cut: bool) -> None:
    """Tokens, texts, logprobs, and the reasons of ends, in every bit."""
    assert found.prompt_token_ids == whole.prompt_token_ids, context
    for expected, output in zip(whole.outputs, found.outputs, strict=True):
        wanted = cut(expected, output) if may_be_cut and output.finish_reason == "abort" else expected
        assert output == wanted, f"{context}\nexpected {wanted}\nfound    {output}"
    if not may_be_cut:
        assert found.prompt_logprobs == whole.prompt_logprobs, context


def cut(whole: CompletionOutput, found: CompletionOutput) -> CompletionOutput:
    """The output expected of a sequence that was aborted after as many tokens as were found."""
    count = len(found.token_ids)
    logprobs = None if whole.logprobs is None else whole.logprobs[:count]
    sums = None if logprobs is None else cumulative(whole, count)
    assert whole.text.startswith(found.text), f"{found.text!r} does not begin {whole.text!r}"
    return CompletionOutput(whole.index, found.text, whole.token_ids[:count], sums, logprobs, "abort", None)


def cumulative(whole: CompletionOutput, count: int) -> float:
    assert whole.logprobs is not None
    pairs = zip(whole.token_ids[:count], whole.logprobs, strict=False)
    total = 0.0
    for token, entry in pairs:
        total += entry[token].logprob
    return total
