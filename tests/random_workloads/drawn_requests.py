"""A random workload: requests with every sampling parameter, some after others, and the faults among them."""

import random
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from paged_serve import RequestOutputKind, SamplingParams, StructuredOutputsParams
from paged_serve.protocol.messages.samplers import RepetitionDetection

from ..workers.invariance.workloads.random_workload import draw_params
from .models import ADAPTERS

VOCAB_SIZE, MAX_TOKENS, MAX_PROMPT = 1024, 40, 110  # of the demo model; of an output; of a first turn
SHORT_PROMPT, LONG_OUTPUT = 20, 110
TALES = (
    "The fox had a red tail. The fox had a long nose. " * 3 + "The fox",
    "one two three four one two three four one two",
    "Once upon a time a little fox lived in a deep forest near a quiet lake. The fox",
    "The capital of Japan is",
)
FORMS_OF_OUTPUT: tuple[dict[str, Any], ...] = (
    {
        "json": {
            "type": "object",
            "properties": {"name_of_the_city": {"type": "string", "maxLength": 8}, "number": {"type": "integer"}},
            "required": ["name_of_the_city", "number"],
            "additionalProperties": False,
        }
    },
    {"regex": r"[a-f]{1,3} and then there are [0-9]{2,20}"},
    {"choice": ["always the same answer", "always another answer", "never"]},
    {"grammar": 'start: "a" /[b-d]{2,30}/ "the end"'},
    {"json_object": True},
)


@dataclass(frozen=True, slots=True)
class DrawnRequest:
    """`prompt`: a text or tokens; `previous`: the number of an earlier request whose prompt and output come first."""

    prompt: str | list[int]
    params: SamplingParams
    adapter: str = ""
    priority: int = 0
    cache_salt: str = ""
    previous: int | None = None
    starts_with: int | None = None  # begins once this earlier request has output
    leaves_after: int | None = None  # aborted once there are so many tokens


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to a process once this share of the tokens has arrived."""

    role: str
    share: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of the second turn begin when those of the first have ended."""

    first: list[DrawnRequest]
    second: list[DrawnRequest]
    kills: list[Kill]


def draw_workload(seed: int) -> Workload:
    rng = random.Random(f"workload {seed}")
    first = [_request(rng, number) for number in range(rng.randint(2, 7))]
    crowding = random.Random(f"crowding {seed}")
    if crowding.random() < 0.3:
        first = [_grows(crowding, request) for request in first]
    second = [_next_turn(rng, first) for _ in range(rng.choice((0, 0, 1, 3)))]
    roles = ("worker", "engine-core")
    kills = [Kill(rng.choice(roles), rng.random()) for _ in range(rng.choices((0, 1, 2), (86, 12, 2))[0])]
    return Workload(first, second, kills)


def _request(rng: random.Random, number: int) -> DrawnRequest:
    return DrawnRequest(
        prompt=_prompt(rng),
        params=_params(rng),
        adapter=rng.choice(("", "", *ADAPTERS)),
        priority=rng.randint(-2, 2),
        cache_salt=rng.choice(("", "", "", "salt")),
        starts_with=rng.randrange(number) if number and rng.random() < 0.3 else None,
        leaves_after=rng.randint(1, MAX_TOKENS) if rng.random() < 0.08 else None,
    )


def _grows(rng: random.Random, request: DrawnRequest) -> DrawnRequest:
    """With a short prompt and a long output: many are admitted, and then there are too few blocks for all."""
    most, is_free = rng.randint(LONG_OUTPUT // 2, LONG_OUTPUT), request.params.structured_outputs is None
    params = structs.replace(request.params, max_tokens=most, ignore_eos=is_free)
    prompt = _tokens(rng, rng.randint(1, SHORT_PROMPT))
    return replace(request, prompt=prompt, params=params)


def _next_turn(rng: random.Random, first: list[DrawnRequest]) -> DrawnRequest:
    """Most continue with the adapter and the salt of the request before them, so that they find its tokens."""
    previous = rng.randrange(len(first))
    before, own = first[previous], _request(rng, 0)
    same = {"adapter": before.adapter, "cache_salt": before.cache_salt} if rng.random() < 0.8 else {}
    fields = {name: same.get(name, getattr(own, name)) for name in ("adapter", "cache_salt")}
    tokens = _tokens(rng, rng.randint(1, 20))
    return DrawnRequest(tokens, own.params, priority=own.priority, previous=previous, **fields)


def _prompt(rng: random.Random) -> str | list[int]:
    """Prefixes of a few texts, which earlier workloads have had, too, and tokens of this one."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(TALES) + rng.choice(("", "", f" {rng.randrange(100)}"))
    shared = _tokens(random.Random(rng.randrange(3)), 80)[: rng.choice((0, 16, 32, 50, 80))]
    own = _tokens(rng, rng.randint(1, 30))
    return (own * 3 if kind < 0.6 else shared + own)[:MAX_PROMPT]


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(count)]


def _params(rng: random.Random) -> SamplingParams:
    """Every field of SamplingParams that a program may set, with a seed."""
    params = draw_params(rng, VOCAB_SIZE, MAX_PROMPT, grows=rng.random() < 0.5)
    more: dict[str, Any] = {"seed": rng.randrange(2**63)}

    def maybe(chance: float, **fields: Any) -> None:
        if rng.random() < chance:
            more.update(fields)

    maybe(0.1, stop=rng.sample(("the", "fox", " a", "e", "\n", "upon"), rng.randint(1, 3)))
    maybe(0.1, bad_words=rng.sample(("fox", "the", "Tokyo", "long nose"), 2))
    maybe(0.1, include_stop_str_in_output=True)
    maybe(0.1, skip_special_tokens=False)
    maybe(0.05, repetition_detection=RepetitionDetection(max_pattern_size=4, min_count=2))
    maybe(0.02, logprobs=-1, logprob_token_ids=())
    if "stop" not in more:
        maybe(0.05, detokenize=False)
    if rng.random() < 0.2:
        free = {"ignore_eos": False, "min_tokens": 0, "allowed_token_ids": None, "bad_words_token_ids": ()}
        more |= free | {"structured_outputs": StructuredOutputsParams(**rng.choice(FORMS_OF_OUTPUT)), "thinking": None}
        more.pop("bad_words", None)
    if not params.greedy and rng.random() < 0.1:
        more |= {"best_of": params.n + rng.randint(0, 2), "output_kind": RequestOutputKind.FINAL_ONLY}
    return structs.replace(params, **more)
