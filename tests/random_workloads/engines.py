"""Engines of random workloads: a drawn one, with drafts and few blocks, and one per form in which nothing disturbs."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from paged_serve import AsyncLLM
from paged_serve.frontend.config.model_folder import demo_model_folder

from .models import RECURRENT, Models

MAX_MODEL_LEN = 256
FORMS: dict[str, dict[str, str]] = {  # of weights, arithmetic and cache
    "bfloat16": {},
    "float16": {"dtype": "float16"},
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8 cache": {"kv_cache_dtype": "int8"},
    RECURRENT: {},
}
RANKS = 8 * (1,) + 5 * (2,) + (4,)  # of so many engines in a row
DRAFTERS = ("suffix", "auto", "ngram", "draft", "eagle3")
ALWAYS = {
    "threads": 1,
    "max_logprobs": 1024,
    "standby_workers": False,
    "max_restarts": 1_000_000,
    "max_model_len": MAX_MODEL_LEN,
}
VICTIMS = {"worker": "worker-", "engine-core": "engine-core"}  # the beginnings of their processes' names


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine that speculates, with places for fewer adapters than there are, and mostly with too few blocks."""

    form: str
    speculative: str
    num_drafts: int
    adaptive: bool
    ranks: int
    block_size: int
    num_blocks: int
    caches_prefixes: bool
    has_tier: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    pipeline_depth: int
    policy: str
    max_loras: int

    def options(self, models: Models, tier: Path) -> dict[str, Any]:
        """The arguments of AsyncLLM. `tier`: the folder of the tier, if it has one."""
        options = models.options(self.form) | {
            "speculative": self.speculative,
            "num_speculative_tokens": self.num_drafts,
            "speculative_adaptive": self.adaptive,
            "tensor_parallel_size": self.ranks,
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "enable_prefix_caching": self.caches_prefixes,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "pipeline_depth": self.pipeline_depth,
            "scheduling_policy": self.policy,
            "max_loras": self.max_loras,
        }
        if self.speculative in ("draft", "eagle3"):
            options["draft_model"] = str(demo_model_folder() if self.speculative == "draft" else models.head)
        if self.has_tier:
            options["kv_tier_dir"] = str(tier)
        return ALWAYS | FORMS[self.form] | options


def draw_engine(number: int) -> EngineChoice:
    """Every form is drawn as often as the others, and so are the ranks, by their shares."""
    rng = random.Random(f"engine {number}")
    block_size = rng.choice((16, 16, 32))
    caches_prefixes = rng.random() < 0.85
    form, ranks = _in_turn("form", tuple(FORMS), number), _in_turn("ranks", RANKS, number)
    drafters = [each for each in DRAFTERS if each != "eagle3" or (form != RECURRENT and ranks == 1)]
    least = MAX_MODEL_LEN // block_size * (2 if form == RECURRENT else 1)
    return EngineChoice(
        form=form,
        speculative=rng.choice(drafters),
        num_drafts=rng.choice((1, 4, 8, 16)),
        adaptive=rng.random() < 0.3,
        ranks=ranks,
        block_size=block_size,
        num_blocks=least + rng.choice((0, 1, 2, 4, 8, 16, 200)),
        caches_prefixes=caches_prefixes,
        has_tier=caches_prefixes and rng.random() < 0.5,
        max_num_seqs=rng.randint(2, 8),
        max_num_batched_tokens=rng.choice((16, 33, 64, 150, 2048)),
        pipeline_depth=rng.randint(1, 3),
        policy=rng.choice(("fcfs", "priority")),
        max_loras=rng.randint(1, 3),
    )


def _in_turn(name: str, kinds: Sequence[Any], number: int) -> Any:
    """So many engines in a row as there are kinds have each of them once, in an order that is drawn."""
    turn, place = divmod(number, len(kinds))
    return random.Random(f"{name} {turn}").sample(kinds, len(kinds))[place]


def undisturbed(form: str, models: Models, max_loras: int) -> dict[str, Any]:
    """The arguments of an AsyncLLM that has blocks and rows for any request, and drafts nothing."""
    options = {"speculative": "off", "num_blocks": 80, "enable_prefix_caching": False, "scheduling_policy": "priority"}
    return ALWAYS | FORMS[form] | models.options(form) | options | {"max_loras": max_loras}


def kill(llm: AsyncLLM, role: str, rng: random.Random) -> bool:
    """Send SIGKILL to a process of this engine. False if there is none, because the engine is replacing it."""
    found = []
    for child in psutil.Process().children():
        try:
            is_meant = child.name().startswith(VICTIMS[role]) and child.status() != psutil.STATUS_ZOMBIE
            if is_meant and llm._engine.run_dir in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    if found:
        rng.choice(found).kill()
    return bool(found)
