"""A rank's tier behind the real engine core and the real runner: restored blocks have the bits of computed ones."""

import random
import select
from pathlib import Path

import pytest
import torch

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.engine_core.process.tier_link import take_tier_messages, tier_answered
from paged_serve.protocol.messages.config import Config, KVTierConfig, ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.completions import PassedEvent
from paged_serve.workers.tier.open_tier import open_tier

from ..one_process import OneProcess
from ..tiny_lfm2 import write_tiny_lfm2
from ..tiny_model import write_tiny_model

LENGTH, VOCAB_SIZE = 400, 90
WINDOWS = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 40}


class TieredProcess(OneProcess):
    """Each message of the engine is answered before the next step."""

    def __init__(self, model, folder, tier_folder, num_blocks=LENGTH // 4):
        config = Config(
            kv_tier=KVTierConfig(dir=str(tier_folder)),
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        )
        self._folder, self._cache = folder, None
        super().__init__(model, config, num_blocks, LENGTH)
        self.engine.scheduler.loading.prompt_token_s = lambda: 1.0  # to load is quicker, however fast this machine is
        library = None if model.backend is None else getattr(getattr(model.backend, "pool", None), "library", None)
        facts = (repr(self.groups), str(model.dtype), str(self.cache_dtype))
        self.tier = open_tier(config, folder, facts, self._cache, 0, library, ())

    def new_cache(self, model, group):
        if self.cache_dtype is None:
            self._cache = super().new_cache(model, group)
        else:  # int8 has no NaN
            shape = model.geometry, self.num_blocks, self.block_size, group.size
            self._cache = KVCache.allocate(*shape, dtype=self.cache_dtype, groups=self.groups)
        return self._cache

    def move(self):
        """Send all messages, and wait until no transfer is left."""
        tiers = self.engine.kv_cache.tiers
        while (messages := take_tier_messages(self.engine, 1.0)) or tiers.transfers or not tiers.index.is_known:
            for message in messages:
                self.tier.handle(message, PassedEvent())
            assert select.select([self.tier.fd], [], [], 30.0)[0], "the tier does not answer"
            for answer in self.tier.take():
                tier_answered(self.engine, answer, 2.0)
            check_invariants(self.engine)

    def complete(self, prompt, number=1, **params):
        """The tokens and logprobs, and how many tokens of the prompt were computed."""
        sampling = SamplingParams(max_tokens=12, seed=7, logprobs=3, ignore_eos=True)
        self.add(EngineCoreRequest(1000 * number, pack_ids(prompt), sampling))
        computed = 0
        while not self.is_idle:
            self.plan()
            computed += sum(chunk.num_tokens for chunk in self.plans[-1].chunks) if self.plans else 0
            self.move()
            for act in (self.execute, self.apply, self.read):
                act()
        self.move()
        received = self.received[1000 * number]
        return (received.token_ids, received.logprobs), computed


def random_prompt(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


def write_full(folder):
    write_tiny_model(folder, max_position_embeddings=LENGTH)


def write_windows(folder):
    write_tiny_model(folder, max_position_embeddings=LENGTH, **WINDOWS)


def write_states(folder):
    write_tiny_lfm2(folder, max_position_embeddings=LENGTH, vocab_size=VOCAB_SIZE)


KINDS = {"full": write_full, "windows": write_windows, "states": write_states}


@pytest.fixture
def serve(tmp_path, make_pool):
    """Starts servers in turn, on one tier."""
    opened = []
    pool = make_pool()

    def start(kind, dtype=None, **options):
        folder = tmp_path / kind
        if not folder.exists():
            folder.mkdir()
            KINDS[kind](folder)
        config = ModelConfig(device="cpu", dtype="auto")
        model = load_model(str(folder), config, TensorParallelGroup(), lambda done, total: None, pool, None)
        process = type("Tiered", (TieredProcess,), {"cache_dtype": dtype})(model, folder, tmp_path / "tier", **options)
        opened.append(process)
        return process

    yield start
    for process in opened:
        process.tier.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_server_restores_a_prompt_to_the_same_bits(kind, serve):
    first, prompt = serve(kind), random_prompt(150, 1)
    size = first.block_size
    expected, computed = first.complete(prompt)
    assert computed == len(prompt)
    assert first.complete(prompt, 2)[0] == expected, "from the prefix cache"
    later = serve(kind)
    restored, computed = later.complete(prompt)
    assert computed == (len(prompt) - 1) % size + 1, "not all full blocks were restored"
    assert restored == expected
    longer = [*prompt, *expected[0], *random_prompt(30, 2)]
    assert later.complete(longer, 3)[0] == serve(kind).complete(longer)[0] == first.complete(longer, 4)[0]


def test_blocks_in_int8_come_back_with_their_scales(serve):
    prompt = random_prompt(150, 1)
    first = serve("full", dtype=torch.int8)
    if first.model.attention.coded_cache != torch.int8:
        pytest.skip("needs the kernels")
    expected, _ = first.complete(prompt)
    restored, computed = serve("full", dtype=torch.int8).complete(prompt)
    assert (restored, computed) == (expected, 6)
    assert serve("full").complete(prompt)[1] == len(prompt), "a cache of another dtype found these blocks"


def test_damaged_blocks_and_other_weights_are_computed(serve, tmp_path):
    prompt = random_prompt(150, 1)
    expected, _ = serve("full").complete(prompt)
    paths = sorted(path for path in tmp_path.glob("tier/*/*") if len(path.name) == 68)
    assert len(paths) >= 9
    for path in paths[3:]:
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 0x80
        path.write_bytes(raw)
    restored, computed = serve("full").complete(prompt)
    assert restored == expected
    assert computed > 6
    weights = tmp_path / "full/model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    assert serve("full").complete(prompt)[1] == len(prompt), "blocks of other weights were used"


def test_evicted_blocks_come_back_while_the_server_runs(serve):
    process = serve("full", num_blocks=26)
    prompts = [random_prompt(300, seed) for seed in range(3)]
    expected = [process.complete(prompt, number)[0] for number, prompt in enumerate(prompts)]
    for number, prompt in enumerate(prompts):
        restored, computed = process.complete(prompt, 10 + number)
        assert restored == expected[number]
        assert computed == (len(prompt) - 1) % 16 + 1
    assert Path(process.config.kv_tier.dir).is_dir()
