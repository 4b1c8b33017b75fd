"""Random workloads of the variants of checkpoints.py, whose states may take blocks of hundreds of tokens.

A variant may be stored in e4m3 codes: "qwen3-moe in fp8-16" has the format "fp8-16" of quantized_checkpoints.py.
"""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from msgspec import structs

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.workers.geometry.geometry import Geometry
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.models.loading import read_model

from ...tiny_models.checkpoints import write_checkpoint
from ...tiny_models.quantized_checkpoints import unstack_experts, write_quantized
from ...tiny_models.tiny_model import VOCAB_SIZE
from .random_workload import LONG_PROMPT, MAX_MODEL_LEN, Workload, draw_workload, longest

FIELDS = {"max_position_embeddings": MAX_MODEL_LEN, "vocab_size": VOCAB_SIZE}
SHARED = 560  # tokens: more than a block of 512, the largest of these models
SEEDS_APART = 10_000
FORM = " in "  # between the names of a variant and of its format


def draw_variant_workload(seed: int, variant: str) -> Workload:
    """A workload of the variant, on 1, 2 and 4 ranks in turn; many prompts begin with one of two long texts."""
    while (workload := draw_workload(seed)).choice.checkpoint == "demo":  # its vocabulary differs
        seed += SEEDS_APART
    choice = replace(workload.choice, checkpoint=variant)
    if choice.quantization == "int4" or FORM in variant:  # ranks' shares of some variants are no whole groups
        choice = replace(choice, quantization="auto")
    choice = replace(choice, ranks=(1, 2, 4)[seed % 3] if choice.threads == 1 else 1)
    configured = workload.config.cache.block_size
    block_size = CacheLayout.of(_geometry(variant), MAX_MODEL_LEN, configured, choice.ranks).block_size
    rng = random.Random(f"{variant} {seed}")
    texts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(SHARED)] for _ in range(2)]
    border = block_size * rng.randint(1, max(1, SHARED // block_size)) if rng.random() < 0.5 else None
    arrivals = [(tick, _lengthened(rng, request, rng.choice(texts), border)) for tick, request in workload.arrivals]
    grown = max(longest(request) for _, request in arrivals) - max(longest(request) for _, request in workload.arrivals)
    num_blocks = workload.num_blocks + -(-grown // configured)
    return replace(workload, choice=choice, arrivals=arrivals, num_blocks=num_blocks)


def write_variant(variant: str, folder: Path) -> None:
    """Write the variant's checkpoint to `folder`, in its format."""
    name, _, form = variant.partition(FORM)
    plain = folder.with_name(f"{folder.name}-plain") if form else folder
    write_checkpoint(name, plain, torch.bfloat16, FIELDS)
    if form:
        if name == "llama4-experts":
            unstack_experts(plain)
        write_quantized(plain, folder, form)


@cache
def _geometry(variant: str) -> Geometry:
    with TemporaryDirectory() as folder:
        write_checkpoint(variant.partition(FORM)[0], Path(folder), torch.bfloat16, FIELDS)
        return read_model(Path(folder), ModelConfig())[1]


def _lengthened(
    rng: random.Random, request: EngineCoreRequest, text: list[int], border: int | None
) -> EngineCoreRequest:
    """Mostly, a request with `text` before its prompt, or with as much of it that the output soon passes `border`."""
    prompt = list(unpack_ids(request.prompt_token_ids))
    if rng.random() < 0.2 or len(prompt) >= LONG_PROMPT:
        return request
    if border is not None:
        text = text[: max(0, border - len(prompt) - rng.randint(1, 8))]
    return structs.replace(request, prompt_token_ids=pack_ids([*text, *prompt]))
