"""Random workloads of determinism tests: a seed determines a model, a small server, requests and faults."""

import random
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from msgspec import structs

from paged_serve.protocol.messages.config import CacheConfig, Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.samplers import Dry, ThinkingBudget, Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.kernels.cpu import library as cpu

MAX_MODEL_LEN = 1400
LONG_PROMPT = 1010  # attention sums keys in ranges of 1024: a few tokens later the second range begins
STREAMS_APART = 100  # the distance of the stream ids of two requests
EOS = 2


@dataclass(frozen=True)
class ModelChoice:
    """A checkpoint, its quantization on load, its instruction set and dtype, and the number of ranks."""

    checkpoint: str  # a key of CHECKPOINTS, one that only a name chooses, a variant of checkpoints.py, or "demo"
    quantization: str
    isa: str
    threads: int
    ranks: int = 1
    dtype: Literal["auto", "float16"] = "auto"
    summation: cpu.Summation = "auto"
    pooling: Literal["auto", "mean", "cls"] = "auto"


Form = Literal["bf16", "fp16", "fp32", "int8", "int4"]  # the form of a model's products

CHECKPOINTS: dict[str, dict[str, Any]] = {  # arguments of write_tiny_model
    "llama": {},
    "llama-float32": {"dtype": torch.float32},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 40},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
}
GROUPED: dict[str, Any] = {  # three KV groups: two layers with full attention, three with windows; chosen by name only
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 5,
    "use_sliding_window": True,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
}
EXPERTS: dict[str, Any] = {  # a dense layer and two of 10 experts in groups, with a shared expert; likewise
    "model_type": "glm4_moe",
    "architectures": ["Glm4MoeForCausalLM"],
    "num_hidden_layers": 3,
    "n_routed_experts": 10,
    "num_experts_per_tok": 3,
    "n_group": 5,
    "topk_group": 3,
    "moe_intermediate_size": 64,
    "partial_rotary_factor": 1.0,
    "routed_scaling_factor": 1.5,
}
LATENT: dict[str, Any] = {  # latent attention in two dense layers; likewise
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 36,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}


@dataclass(frozen=True)
class Workload:
    """A workload in ticks: in each tick, client, engine and worker may do one thing."""

    seed: int
    choice: ModelChoice
    config: Config
    num_blocks: int
    arrivals: list[tuple[int, EngineCoreRequest]]  # (tick, request)
    abort_ticks: set[int]
    restart_ticks: set[int]  # ticks at which the workers lose their state
    client_credit: int  # messages that may be in transit to the client
    client_pace: float  # the probability per tick that the client reads a message


def _with_later_choices(choice: ModelChoice, seed: int) -> ModelChoice:
    """Each is drawn from a generator of its own, so that the other draws of a seed do not depend on it."""
    if choice.threads == 1:
        choice = replace(choice, ranks=_draw_ranks(random.Random(f"ranks {seed}"), choice))
    if choice.checkpoint != "llama-float32" and random.Random(f"dtype {seed}").random() < 0.3:
        choice = replace(choice, dtype="float16")
    orders: tuple[cpu.Summation, ...] = ("dot", "tile")
    return replace(choice, summation=random.Random(f"summation {seed}").choice(orders))


def draw_workload(seed: int, form: Form | None = None, isa: str | None = None) -> Workload:
    """A mixed workload, a crowded one (short prompts with long outputs in a small cache), or a pair on two threads.

    `form` and `isa` replace the choices of `seed`.
    """
    rng = random.Random(seed)
    kind = rng.choices(("mixed", "crowded", "pair"), (60, 36, 4))[0]
    choice = _with_later_choices(_draw_choice(rng, kind), seed)
    if form is not None:
        choice = _in_form(choice, form)
    if isa is not None:
        choice = replace(choice, isa=isa)
    requests = _draw_requests(rng, kind, 1024 if choice.checkpoint == "demo" else 300)
    own = random.Random(f"vectors {seed}")
    requests = [_for_a_vector(own, request) if own.random() < 0.15 else request for request in requests]
    if own.random() < 0.2:
        choice = replace(choice, pooling=own.choice(("mean", "cls")))
    is_crowded = kind == "crowded"
    block_size: Any = 16 if is_crowded else rng.choice((16, 16, 32, 64))
    largest = max(-(-longest(request) // block_size) for request in requests)
    config = Config(
        cache=CacheConfig(block_size=block_size, enable_prefix_caching=rng.random() < 0.7),
        scheduler=SchedulerConfig(
            max_num_seqs=rng.randint(4, 8) if is_crowded else rng.randint(1, 8),
            max_num_batched_tokens=rng.choice((5, 16, 33, 64, 150, 2048)) if longest(requests[0]) < 300 else 256,
            policy=rng.choice(("fcfs", "fcfs", "priority")),
            pipeline_depth=rng.randint(1, 3),
        ),
    )
    if config.scheduler.policy == "priority":
        requests = [structs.replace(request, priority=rng.randint(-2, 2)) for request in requests]
    pace = 0 if is_crowded else rng.choice((0, 3, 15))  # mean number of ticks between arrivals
    return Workload(
        seed=seed,
        choice=choice,
        config=config,
        num_blocks=largest + (rng.randint(0, 3) if is_crowded else rng.choice((0, 2, 4, 100))),
        arrivals=[(rng.randint(0, pace * len(requests)), request) for request in requests],
        abort_ticks={rng.randint(1, 100) for _ in range(rng.choice((0, 0, 1, 3)))},
        restart_ticks={rng.randint(1, 100) for _ in range(rng.choice((0, 0, 0, 1, 2)))},
        client_credit=rng.choice((1, 3, 256)),
        client_pace=rng.choice((0.2, 0.9)),
    )


def draw_grouped_workload(seed: int) -> Workload:
    """A workload of a model with several KV groups, unless `seed` draws the demo model, whose vocabulary differs."""
    workload = draw_workload(seed)
    choice = replace(workload.choice, checkpoint="grouped", quantization="auto")
    return workload if workload.choice.checkpoint == "demo" else replace(workload, choice=choice)


def draw_expert_workload(seed: int) -> Workload:
    """A workload of a model with experts, on 1, 2 and 4 ranks in turn, unless `seed` draws the demo model."""
    workload = draw_workload(seed)
    if workload.choice.checkpoint == "demo":
        return workload
    choice = replace(workload.choice, checkpoint="experts")
    ranks = (1, 2, 4)[seed % 3] if choice.threads == 1 and _is_divisible(choice) else 1
    return replace(workload, choice=replace(choice, ranks=ranks))


def draw_state_workload(seed: int) -> Workload:
    """A workload of a model with states, unless `seed` draws the demo model, whose vocabulary differs."""
    workload = draw_workload(seed)
    if workload.choice.checkpoint == "demo":
        return workload
    return replace(workload, choice=replace(workload.choice, checkpoint="states"))


def draw_latent_workload(seed: int) -> Workload:
    """A workload of a model with latent attention, on 1, 2 and 4 ranks in turn, unless `seed` draws the demo model."""
    workload = draw_workload(seed)
    if workload.choice.checkpoint == "demo":
        return workload
    quantization: str = "auto" if workload.choice.quantization == "int4" else workload.choice.quantization
    choice = replace(workload.choice, checkpoint="latent", quantization=quantization)
    return replace(workload, choice=replace(choice, ranks=(1, 2, 4)[seed % 3] if choice.threads == 1 else 1))


def _in_form(choice: ModelChoice, form: Form) -> ModelChoice:
    quantization = form if form in ("int8", "int4") else "auto"
    if form == "fp32":
        checkpoint = "llama-float32"
    else:
        checkpoint = "llama" if choice.checkpoint == "llama-float32" else choice.checkpoint
    in_form = replace(choice, checkpoint=checkpoint, quantization=quantization)
    dtype: Literal["auto", "float16"] = choice.dtype if form in ("int8", "int4") else "auto"
    in_form = replace(in_form, dtype="float16" if form == "fp16" else dtype)
    return in_form if _is_divisible(in_form) else replace(in_form, ranks=1)


def _draw_choice(rng: random.Random, kind: str) -> ModelChoice:
    isas = cpu.runnable_isas()
    drawn = rng.random()  # once, so that what follows does not depend on how many instruction sets there are
    isa = isas[0] if drawn < 0.5 else isas[int((2 * drawn - 1) * len(isas))]
    if kind == "pair":
        return ModelChoice(rng.choice(list(CHECKPOINTS)), "auto", isa, threads=2)
    checkpoint = rng.choice((*CHECKPOINTS, *CHECKPOINTS, *CHECKPOINTS, "demo"))
    quantization = "auto" if checkpoint == "llama-float32" else rng.choice(("auto", "auto", "int8", "int4"))
    return ModelChoice(checkpoint, quantization, isa, threads=1)


def _draw_ranks(rng: random.Random, choice: ModelChoice) -> int:
    return rng.choices((1, 2, 4), (80, 14, 6))[0] if _is_divisible(choice) else 1


def _is_divisible(choice: ModelChoice) -> bool:
    return choice.checkpoint == "demo" or choice.quantization != "int4"  # 96 inputs are three groups of 32


def _draw_requests(rng: random.Random, kind: str, vocab_size: int) -> list[EngineCoreRequest]:
    """Requests whose prompts often begin like one of two texts, to share prefixes."""
    texts = [[rng.randrange(3, vocab_size) for _ in range(120)] for _ in range(2)]
    prompts = []
    for _ in range({"mixed": rng.randint(2, 6), "crowded": rng.randint(4, 7), "pair": 2}[kind]):
        shared = rng.choice(texts)[: 17 if kind == "crowded" else rng.choice((16, 32, 64, 100, rng.randint(1, 120)))]
        own = [rng.randrange(vocab_size) for _ in range(rng.choice((0, 1, rng.randint(1, 30))))]
        prompts.append(shared + own if rng.random() < 0.7 else own or shared)
    if rng.random() < {"mixed": 0.03, "crowded": 0.0, "pair": 0.5}[kind]:
        prompts[0] = [rng.randrange(3, vocab_size) for _ in range(LONG_PROMPT + rng.randint(0, 20))]
    return [
        EngineCoreRequest(
            request_id=index * STREAMS_APART,
            prompt_token_ids=pack_ids(prompt),
            sampling_params=draw_params(rng, vocab_size, len(prompt), grows=kind == "crowded"),
            cache_salt=rng.choice(("", "", "", "salt")),
        )
        for index, prompt in enumerate(prompts)
    ]


def _for_a_vector(rng: random.Random, request: EngineCoreRequest) -> EngineCoreRequest:
    """The same prompt in a pooling request."""
    pooling = PoolingParams(
        rng.choice(("embed", "embed", "token_embed")),
        dimensions=rng.choice((None, None, 16)),
        use_activation=rng.random() < 0.7,
        skip_reading_prefix_cache=rng.random() < 0.1,
    )
    return structs.replace(request, sampling_params=SamplingParams(), pooling_params=pooling)


def draw_params(rng: random.Random, vocab_size: int, prompt_len: int, grows: bool) -> SamplingParams:
    max_tokens = rng.randint(16, 50) if grows else rng.choice((1, 2, rng.randint(3, 20), rng.randint(3, 20), 40))
    options: dict[str, Any] = {"max_tokens": max_tokens}

    def maybe(chance: float, **more: Any) -> None:
        if rng.random() < chance:
            options.update(more)

    maybe(0.9, seed=rng.randrange(2**63))
    maybe(0.3, top_k=rng.choice((1, 5, 50)))
    maybe(0.3, top_p=rng.uniform(0.2, 0.99))
    maybe(0.2, min_p=rng.uniform(0.0, 0.2))
    maybe(0.2, repetition_penalty=rng.uniform(0.8, 1.5))
    maybe(0.2, frequency_penalty=rng.uniform(-1, 1), presence_penalty=rng.uniform(-1, 1))
    maybe(0.2, stop_token_ids=tuple(rng.sample(range(3, vocab_size), 20)))
    maybe(0.2, min_tokens=rng.randint(0, max_tokens))
    maybe(0.8 if grows else 0.5, ignore_eos=True)
    maybe(0.15, logit_bias={EOS: rng.uniform(0, 8), rng.randrange(vocab_size): rng.uniform(-5, 5)})
    maybe(0.1, bad_words_token_ids=((rng.randrange(3, vocab_size),), (7, 8)))
    maybe(0.1, allowed_token_ids=tuple(rng.sample(range(vocab_size), 90)))
    maybe(0.5, logprobs=rng.randint(0, 5))
    maybe(0.2 if prompt_len < LONG_PROMPT else 0, prompt_logprobs=rng.randint(0, 3))
    maybe(0.1, skip_reading_prefix_cache=True)
    if rng.random() < 0.35:
        options["temperature"] = 0.0
    else:
        options |= {"temperature": rng.choice((0.3, 0.8, 1.0, 1.7)), "n": rng.choice((1, 1, 1, 1, 1, 2, 3))}
    own = random.Random(f"thinking {options}")  # separate, so that workloads without thinking do not change
    if own.random() < 0.15:
        begin, end = (own.randrange(3, vocab_size),), tuple(own.choices(range(3, vocab_size), k=own.randint(1, 3)))
        options["thinking"] = ThinkingBudget(own.randint(0, 12), begin, end, own.choice((None, 0, 4)))
    if own.random() < 0.1:
        options |= {"logprobs": 3, "logprob_token_ids": tuple(own.sample(range(vocab_size), 3))}
    if own.random() < 0.1:
        options["xtc"] = Xtc(probability=own.choice((0.3, 1.0)), threshold=own.choice((0.01, 0.1)))
    if own.random() < 0.1:
        breakers = tuple(own.sample(range(vocab_size), 20))
        options["dry"] = Dry(multiplier=own.uniform(0.5, 4), allowed_length=1, breaker_token_ids=breakers)
    return SamplingParams(**options)


def longest(request: EngineCoreRequest) -> int:
    """The largest number of tokens of the request's sequences."""
    limit = request.sampling_params.max_tokens
    assert limit is not None
    return len(request.prompt_token_ids) // 4 + limit
