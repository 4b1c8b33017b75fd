"""The requests of a load and the output received for them: the unit in which streams are compared."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.sampling_params import SamplingParams

VOCAB_SIZE = 1024  # of the demo model
MAX_PROMPT_TOKENS = 400


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of the load. `number` names it in failures."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    adapter: Adapter | None = None

    def http_body(self) -> dict[str, object]:
        params = self.params
        return {
            "prompt": list(self.prompt),
            "max_tokens": params.max_tokens,
            "n": params.n,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": params.seed,
            "logprobs": params.logprobs,
            "ignore_eos": params.ignore_eos,
            "return_token_ids": True,
            "stream": True,
            **({"model": self.adapter.name} if self.adapter else {}),
        }


@dataclass(slots=True)
class Received:
    """Everything received of one sequence so far; over HTTP with its text."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    def is_prefix_of(self, whole: "Received") -> bool:
        """Compares tokens, logprobs and text; text may arrive later than its tokens."""
        return (
            self.token_ids == whole.token_ids[: len(self.token_ids)]
            and self.logprobs == whole.logprobs[: len(self.logprobs)]
            and whole.text.startswith(self.text)
        )


def draw_requests(seed: int, count: int, max_tokens: int, adapters: Sequence[Adapter] = ()) -> list[LoadRequest]:
    """Greedy and sampled, with one and two sequences, with and without logprobs, some with a common prefix.

    They take turns with the base model and the adapters.
    """
    rng = random.Random(f"orders {seed}")
    shared = [rng.randrange(3, VOCAB_SIZE) for _ in range(MAX_PROMPT_TOKENS // 2)]
    requests = []
    for number in range(count):
        prompt = shared[: rng.choice((0, 0, 0, len(shared)))]
        prompt = [*prompt, *(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(4, MAX_PROMPT_TOKENS // 2)))]
        is_greedy = number % 2 == 0
        params = SamplingParams(
            n=1 if is_greedy else rng.choice((1, 1, 2)),
            temperature=0.0 if is_greedy else rng.choice((0.7, 1.0)),
            top_p=1.0 if is_greedy else rng.choice((1.0, 0.9)),
            seed=rng.randrange(2**31),
            max_tokens=rng.randint(max_tokens // 2, max_tokens),
            logprobs=rng.choice((None, None, 1)),
            ignore_eos=rng.random() < 0.8,
        )
        adapter = (None, *adapters)[number % (1 + len(adapters))]
        requests.append(LoadRequest(number, tuple(prompt), params, adapter))
    return requests
