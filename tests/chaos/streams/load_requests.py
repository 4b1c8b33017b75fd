"""The requests of a load and the output received for them: the unit in which streams are compared."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

VOCAB_SIZE = 1024  # of the demo model
MAX_PROMPT_TOKENS = 400
MAX_WORDS = 40
SCHEMA = """{
    "type": "object", "additionalProperties": false, "required": ["name", "sizes"],
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "sizes": {"type": "array", "maxItems": 20, "items": {"type": "integer"}}
    }
}"""
# States that a worker or an engine core must have again after a fault, in turn.
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"presence_penalty": 0.6, "frequency_penalty": 0.2},
    {"structured_outputs": StructuredOutputsParams(regex="([a-z]{1,8} ){10,30}[a-z]+")},
    {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2},
    {},
    {"min_tokens": 30, "stop_token_ids": tuple(range(100, 160))},
    {"structured_outputs": StructuredOutputsParams(json=SCHEMA)},
    {"logit_bias": dict.fromkeys(range(200, 232), 3.0), "presence_penalty": -0.2},
)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of the load. `number` names it in failures."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    adapter: Adapter | None = None

    def http_body(self) -> dict[str, Any]:
        model = {"model": self.adapter.name} if self.adapter else {}
        return msgspec.to_builtins(self.params) | model | {"return_token_ids": True, "stream": True}

    def completion_body(self) -> dict[str, Any]:
        return {"prompt": list(self.prompt), **self.http_body()}

    def chat_body(self) -> dict[str, Any]:
        """A conversation with the prompt's ids as its words."""
        words = " ".join(map(str, self.prompt[:MAX_WORDS]))
        body = {"messages": [{"role": "user", "content": words}], **self.http_body()}
        if (top := body.pop("logprobs", None)) is not None:
            body |= {"logprobs": True, "top_logprobs": top}
        return body


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

    They take turns with the base model and the adapters, and with the forms.
    """
    rng = random.Random(f"orders {seed}")
    shared = [rng.randrange(3, VOCAB_SIZE) for _ in range(MAX_PROMPT_TOKENS // 2)]
    requests = []
    for number in range(count):
        prompt = shared[: rng.choice((0, 0, 0, len(shared)))]
        prompt = [*prompt, *(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(4, MAX_PROMPT_TOKENS // 2)))]
        is_greedy, form = number % 2 == 0, FORMS[number // 2 % len(FORMS)]
        params = SamplingParams(
            n=1 if is_greedy else rng.choice((1, 1, 2)),
            temperature=0.0 if is_greedy else rng.choice((0.7, 1.0)),
            top_p=1.0 if is_greedy else rng.choice((1.0, 0.9)),
            seed=rng.randrange(2**31),
            max_tokens=rng.randint(max_tokens // 2, max_tokens),
            logprobs=rng.choice((None, None, 1)),
            ignore_eos=rng.random() < 0.8 and "structured_outputs" not in form,
            **form,
        )
        adapter = (None, *adapters)[number % (1 + len(adapters))]
        requests.append(LoadRequest(number, tuple(prompt), params, adapter))
    return requests
