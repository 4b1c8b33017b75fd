"""An engine core in a real process, its workers, and the tokens that a request gets from it."""

from paged_serve.engine_core.simulation.client import output_alone
from paged_serve.protocol.messages.config import CacheConfig, Config, ParallelConfig, SchedulerConfig, SpeculationConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams

from .engine_harness import VOCAB_SIZE, FakeRank

PROMPT = list(range(1, 40))
PARAMS = SamplingParams(seed=5, max_tokens=100, ignore_eos=True)


def config(**parallel):
    return Config(
        cache=CacheConfig(block_size=16),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        parallel=ParallelConfig(**parallel),
        speculation=SpeculationConfig("off"),  # FakeRank verifies nothing
    )


def expected(prompt=PROMPT, params=PARAMS):
    request = EngineCoreRequest(0, pack_ids(prompt), params)
    return output_alone(request, params.seed, len(prompt) + params.max_tokens, VOCAB_SIZE)[0]


def tokens_of(request):
    tokens = []
    for delta in request:
        tokens += delta.token_ids
    return tokens


def start(harness, ranks, epoch=0, **options):
    ranks.append(FakeRank(harness.run_dir, 16, epoch, **options))
    return ranks[-1]
