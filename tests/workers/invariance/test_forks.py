"""Sequences that start within another sequence's block: they compute only their own tokens, to the same bits."""

import pytest
import torch

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.protocol.messages.config import CacheConfig, Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.kernels.cpu import library as cpu

from ..one_process import CLIENT, OneProcess
from .workloads.random_workload import ModelChoice
from .workloads.workload_models import Models

PROMPT = [(7 * index * index + 3 * index) % 89 + 3 for index in range(507)]  # it ends within a block
NUM_SIBLINGS = 4
FAST = ("llama", "llama-int8-cache", "grouped", "latent", "states")
NIGHTLY = ("llama-tp2", "mistral", "mamba2", "mamba", "falcon-h1", "qwen3-next", "granite4")


class Int8Cache(OneProcess):
    cache_dtype = torch.int8


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    models = Models(tmp_path_factory.mktemp("models"))
    yield models
    models.close()


class Server:
    """An engine and its workers; `run` counts the tokens of chunks."""

    def __init__(self, models: Models, name: str, *, caches: bool = True):
        checkpoint, _, _kind = name.partition("-int8") if "int8" in name else name.partition("-tp")
        isa = cpu.runnable_isas()[0]
        model = models.load(ModelChoice(checkpoint, "auto", isa, 1, ranks=2 if "-tp" in name else 1))
        config = Config(
            cache=CacheConfig(enable_prefix_caching=caches),
            scheduler=SchedulerConfig(max_num_seqs=NUM_SIBLINGS, max_num_batched_tokens=256),
        )
        new = Int8Cache if "int8" in name else OneProcess
        self.process = new(model, config, num_blocks=1600, max_model_len=1200)
        self.num_copies = 0

    def run(self, request_id: int, prompt: list[int], **params) -> int:
        sampling = SamplingParams(**{"max_tokens": 6, "logprobs": 1, "ignore_eos": True, "seed": 5} | params)
        self.process.add(EngineCoreRequest(request_id, pack_ids(prompt), sampling))
        self.seeds = [each.seed for each in self.process.engine.clients[CLIENT].streams.values()]
        computed = 0
        while not self.process.is_idle:
            self.process.plan()
            if self.process.plans:
                computed += sum(chunk.num_tokens for chunk in self.process.plans[-1].chunks)
                self.num_copies += len(self.process.plans[-1].copied_blocks) // 8
            for act in (self.process.execute, self.process.apply, self.process.read):
                act()
        check_invariants(self.process.engine)
        return computed


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)])
def test_siblings_and_next_turns_compute_only_their_own_tokens_to_the_same_bits(models, name):
    server, plain = Server(models, name), Server(models, name, caches=False)
    sampled = {"n": NUM_SIBLINGS, "temperature": 1.0}
    streams = {}

    # Siblings: each computes the last token of the prompt.
    assert server.run(1000, PROMPT, **sampled) == len(PROMPT) - 1 + NUM_SIBLINGS
    assert server.num_copies == (NUM_SIBLINGS - 1) * len(server.process.groups.kinds)
    assert plain.run(1000, PROMPT, **sampled) == len(PROMPT) - 1 + NUM_SIBLINGS, "siblings share without a cache, too"
    for index, seed in enumerate(server.seeds):
        plain.run(2000 + index, PROMPT, temperature=1.0, seed=seed)
        streams[index] = server.process.received[1000 + index]
        assert streams[index] == plain.process.received[2000 + index] == plain.process.received[1000 + index]

    # The next turn continues within the last block of its sequence.
    turn = PROMPT + streams[3].token_ids + [9, 11, 13]
    assert server.run(3000, turn) <= 5
    plain.run(3000, turn)
    assert server.process.received[3000] == plain.process.received[3000]

    # A beam requests one token after the tokens of another, and computes one.
    beam = [*PROMPT, *streams[0].token_ids[:1]]
    for number in range(4):
        computed = server.run(4000 + number, beam, max_tokens=1, temperature=0)
        assert computed == 1 or number == 0
        plain.run(4000 + number, beam, max_tokens=1, temperature=0)
        assert server.process.received[4000 + number] == plain.process.received[4000 + number]
        beam = [*beam, *server.process.received[4000 + number].token_ids]
