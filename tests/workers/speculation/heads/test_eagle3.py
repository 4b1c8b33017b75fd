"""EAGLE-3 heads: the arithmetic is that of the method, drafts change no byte, and what does not fit is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import (
    CacheConfig,
    Config,
    LoraConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.heads.eagle3_loading import load_eagle3, tapped_layers
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.drafting.draft_head import CachedHead
from paged_serve.workers.process.drafting.draft_source import draft_source_of
from paged_serve.workers.speculation.model_drafters.head_drafter import HeadDrafter

from ...ranks import Ranks, SharedModel
from ...tiny_models.made_eagle3 import (
    CHAIN_CONFIG,
    chain_tensors,
    head_tensors,
    write_chain_target,
    write_head,
    write_target,
)
from ...tiny_models.tiny_model import HIDDEN, VOCAB_SIZE, write_tiny_model
from ..direct import Row, counts
from ..workloads import Bench, played_alike
from .eagle3_reference import Reference
from .kept_logits import WithLogits, assert_drafts_are_those_of

BLOCK_SIZE, NUM_ROWS = 16, 6
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [(7 * i + 3) % VOCAB_SIZE for i in range(20)]


@pytest.fixture(scope="module")
def pool(make_pool):
    return make_pool()


def loaded(folder, pool, group=None, lora=None):
    config = ModelConfig(device="cpu")
    return load_model(str(folder), config, group or TensorParallelGroup(), lambda done, total: None, pool, lora=lora)


def drafter_for(model, head_folder, pool, num_blocks=NUM_ROWS * 16, kind=CachedHead, target_folder="not read"):
    head = load_eagle3(Path(head_folder), Path(target_folder), ModelConfig(device="cpu"), model, pool)
    model.taps.open(tapped_layers(model.geometry.num_layers), HIDDEN, model.dtype, 2048)
    cache = head.new_cache(num_blocks, BLOCK_SIZE)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(torch.nan)
    return HeadDrafter(kind(head, cache, model.taps), num_blocks, BLOCK_SIZE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target and a random head, in bfloat16."""
    path = tmp_path_factory.mktemp("eagle3")
    (path / "target").mkdir()
    return write_target(path / "target"), write_head(path / "head")


@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("normalises_residual", [False, True])
def test_the_arithmetic_is_that_of_the_method(has_kernels, normalises_residual, pool, tmp_path):
    (tmp_path / "target").mkdir()
    target = write_target(tmp_path / "target", torch.float32)
    head = write_head(tmp_path / "head", torch.float32, norm_before_residual=normalises_residual)
    pool = pool if has_kernels else None
    model = loaded(target, pool)
    drafter = drafter_for(model, head, pool, kind=WithLogits)
    reference = Reference(target, head, normalises_residual=normalises_residual)
    assert_drafts_are_those_of(reference, Row(model, drafter, PROMPT, GREEDY), drafter, PROMPT)


# --- the bytes ---


@pytest.mark.parametrize("num_blocks", [NUM_ROWS * 16, 3], ids=["all", "few blocks"])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_change_no_byte(seed, num_blocks, folders, pool):
    target, head = folders
    plain, tapped = loaded(target, pool), loaded(target, pool)
    drafter = drafter_for(tapped, head, pool, num_blocks)
    planner = played_alike(Bench(plain), seed, drafter, ranks=Bench(tapped))
    assert planner.drafts["made"] > 0
    held = [block for row in drafter._blocks.rows.values() for block in row.blocks]
    assert sorted(held + drafter._blocks.free) == list(range(num_blocks))


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    path = tmp_path_factory.mktemp("chain")
    (path / "target").mkdir()
    target = write_chain_target(path / "target")
    embeddings = load_file(path / "target" / "model.safetensors")["model.embed_tokens.weight"]
    heads = [
        write_head(path / f"head{reads}", tensors=chain_tensors(embeddings, reads_hidden=reads), **CHAIN_CONFIG)
        for reads in (False, True)
    ]
    return target, *heads


def test_a_head_that_knows_the_text_is_right_from_the_first_token_on(chain, pool):
    target, head, _ = chain
    model = loaded(target, pool)
    row = Row(model, drafter_for(model, head, pool), PROMPT, GREEDY)
    for _ in range(4):
        assert counts(row.verify(5)) == ([5], [6])


def test_a_new_request_in_a_row_begins_with_its_own_text(chain, pool):
    target, head, _ = chain
    model = loaded(target, pool)
    drafter = drafter_for(model, head, pool)
    for prompt in (PROMPT, PROMPT[::-1][:11], PROMPT[5:]):
        row = Row(model, drafter, prompt, GREEDY)
        for _ in range(2):
            assert counts(row.verify(5)) == ([5], [6])


def test_the_first_draft_is_right_by_the_hidden_state_alone(chain, pool):
    """A hidden state of another token, or beside another token, would make it wrong."""
    target, _, head = chain
    model = loaded(target, pool)
    row = Row(model, drafter_for(model, head, pool), PROMPT, GREEDY)
    for _ in range(4):
        assert counts(row.verify(3)) == ([3], [2])
        row.decoded(2)


@pytest.mark.parametrize("seed", range(3))
def test_right_drafts_change_no_byte(seed, chain, pool):
    target, head, _ = chain
    plain, tapped = loaded(target, pool), loaded(target, pool)
    planner = played_alike(Bench(plain), seed, drafter_for(tapped, head, pool), ranks=Bench(tapped))
    assert planner.drafts["accepted"] > 0


@pytest.fixture
def two_ranks(tmp_path):
    ranks = Ranks(2, tmp_path / "rendezvous")
    yield ranks
    ranks.close()


def test_on_two_ranks_right_drafts_change_no_byte(chain, two_ranks):
    """The head reads the target's table from its folder: each rank of the target has a part of it."""
    target, head, _ = chain
    ranks = SharedModel(two_ranks, lambda group: loaded(target, None, group=group))
    drafter = drafter_for(ranks.of_rank[0], head, None, target_folder=target)
    planner = played_alike(Bench(loaded(target, None)), 1, drafter, ranks=Bench(ranks), most_requests=2)
    assert planner.drafts["accepted"] > 0


def test_a_head_beside_adapters_does_not_use_the_table_that_they_change(chain, pool):
    """What the target's would add belongs to the rows and tokens of its last step."""
    target, head, _ = chain
    model = loaded(target, pool, lora=LoraConfig(max_loras=1))
    drafter = drafter_for(model, head, pool, target_folder=target)
    assert drafter._head._head.embedding is not model.embedding
    assert counts(Row(model, drafter, PROMPT, GREEDY).verify(5)) == ([5], [6])


# --- the configuration ---


def config_for(target, head, **changes):
    return Config(
        model=ModelConfig(model=str(target), device="cpu"),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=SchedulerConfig(max_num_seqs=NUM_ROWS),
        speculation=SpeculationConfig(**{"method": "eagle3", "draft_model": str(head)} | changes),
    )


def test_the_head_of_the_configuration_drafts(chain, pool):
    target, head, _ = chain
    model = loaded(target, pool)
    config = config_for(target, head)
    assert draft_source_of(config, target, model, pool, rank=1) is None
    source = draft_source_of(config, target, model, pool, rank=0)
    assert source.cache_bytes > 0
    row = Row(model, source.drafter(SchedulerConfig(max_num_seqs=NUM_ROWS)), PROMPT, GREEDY)
    assert counts(row.verify(4)) == ([4], [5])


def test_a_head_with_its_own_table_and_the_other_names_drafts_alike(folders, pool, tmp_path):
    target, head = folders
    tensors = {
        name.replace("midlayer.", "layers.0."): each for name, each in load_file(head / "model.safetensors").items()
    }
    tensors["embed_tokens.weight"] = load_file(Path(target) / "model.safetensors")["model.embed_tokens.weight"]
    other = write_head(tmp_path / "other", tensors=tensors)
    found = []
    for folder in (head, other):
        model = loaded(target, pool)
        drafter = drafter_for(model, folder, pool, kind=WithLogits)
        Row(model, drafter, PROMPT, GREEDY).verify(4)
        found.append(torch.cat(drafter._head.logits))
    assert torch.equal(*found)


def test_what_cannot_draft_is_refused_by_name(folders, pool, tmp_path):
    target, head = folders
    model = loaded(target, pool)

    def refused(match, folder, model=model, **changes):
        with pytest.raises(ConfigError, match=match):
            draft_source_of(config_for(target, folder, **changes), target, model, pool, rank=0)

    def changed(name, change=lambda tensors: None, **fields):
        tensors = head_tensors()
        change(tensors)
        return write_head(tmp_path / name, tensors=tensors, **fields)

    refused("speculative='eagle3' and draft_model='' do not fit together", "")
    refused("draft_model=/nowhere: there is no /nowhere/config.json", "/nowhere")
    refused("architecture LlamaForCausalLM is not an EAGLE-3 head; supported: LlamaForCausalLMEagle3", target)
    refused("hidden_size=128, but the model has 64", changed("size", hidden_size=128))
    refused("vocab_size=280, but the model has 300", changed("vocabulary", vocab_size=280))
    refused("draft_vocab_size=301 is more than vocab_size=300", changed("more", draft_vocab_size=301))
    refused("num_hidden_layers=2 must be 1", changed("layers", num_hidden_layers=2))
    refused(
        "eagle_aux_hidden_state_layer_ids=.* is not supported", changed("ids", eagle_aux_hidden_state_layer_ids=[1])
    )
    refused("has no tensor fc.weight", changed("fc", lambda tensors: tensors.pop("fc.weight")))
    refused("has no tensor d2t, which maps its 120", changed("d2t", lambda tensors: tensors.pop("d2t")))
    refused("d2t maps draft tokens to 904 to 1199, but", changed("far", lambda tensors: tensors["d2t"].add_(900)))
    refused("does not explain: fc.bias", changed("bias", lambda tensors: tensors.update({"fc.bias": torch.zeros(4)})))
    (tmp_path / "short").mkdir()
    short = loaded(write_tiny_model(tmp_path / "short"), pool)
    refused("the model has 2 layers, but an EAGLE-3 head .* needs 4 or more", head, model=short)
    assert draft_source_of(config_for(target, head), target, model, pool, rank=0) is not None
