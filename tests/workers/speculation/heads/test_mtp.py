"""Heads for multi-token prediction: the arithmetic is that of the method, drafts change no byte, and what does not fit
is refused."""

import json
from pathlib import Path

import pytest
import torch

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
from paged_serve.workers.kv.budget import expert_rows_bytes
from paged_serve.workers.models.heads.mtp_loading import load_mtp
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.drafting.draft_head import CachedHead
from paged_serve.workers.process.drafting.draft_source import draft_source_of
from paged_serve.workers.speculation.model_drafters.head_drafter import HeadDrafter

from ...ranks import Ranks, SharedModel
from ...tiny_models.made_mtp import FAMILIES, Reference, made, made_chain
from ...tiny_models.quantized_checkpoints import write_quantized
from ...tiny_models.tiny_model import write_tiny_model
from ..direct import Row, counts
from ..workloads import Bench, played_alike
from .kept_logits import WithLogits, assert_drafts_are_those_of

BLOCK_SIZE, NUM_ROWS, VOCAB_SIZE = 16, 6, 199
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [(7 * i + 3) % VOCAB_SIZE for i in range(20)]
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def pool(make_pool):
    return make_pool()


def loaded(folder, pool, group=None, **options):
    config = ModelConfig(device="cpu", **options)
    return load_model(str(folder), config, group or TensorParallelGroup(), lambda done, total: None, pool)


def drafter_for(model, folder, pool, num_blocks=NUM_ROWS * 16, kind=CachedHead, **options):
    head = load_mtp(Path(folder), ModelConfig(device="cpu", **options), model, pool)
    model.taps.open(head.tapped, model.geometry.hidden_size, model.dtype, 2048)
    cache = head.new_cache(num_blocks, BLOCK_SIZE)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(torch.nan)
    return HeadDrafter(kind(head, cache, model.taps), num_blocks, BLOCK_SIZE)


# --- the arithmetic ---


@every_family
@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "torch"])
def test_the_arithmetic_is_that_of_the_method(family, has_kernels, pool, tmp_path):
    found, pool = made(family, tmp_path, torch.float32), pool if has_kernels else None
    model = loaded(tmp_path, pool)
    drafter, reference = drafter_for(model, tmp_path, pool, kind=WithLogits), Reference(family, found)
    assert_drafts_are_those_of(reference, Row(model, drafter, PROMPT, GREEDY), drafter, PROMPT)


# --- the bytes ---


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A random checkpoint of each family, in bfloat16."""
    return {family: made(family, tmp_path_factory.mktemp(family)).folder for family in FAMILIES}


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """Of each family one whose head is always right."""
    return {family: made_chain(family, tmp_path_factory.mktemp(f"chain-{family}")).folder for family in FAMILIES}


@every_family
@pytest.mark.parametrize("num_blocks", [NUM_ROWS * 16, 3], ids=["all", "few blocks"])
@pytest.mark.parametrize("seed", range(2))
def test_drafts_change_no_byte(family, seed, num_blocks, folders, pool):
    plain, tapped = loaded(folders[family], pool), loaded(folders[family], pool)
    drafter = drafter_for(tapped, folders[family], pool, num_blocks)
    planner = played_alike(Bench(plain), seed, drafter, ranks=Bench(tapped))
    assert planner.drafts["made"] > 0
    held = [block for row in drafter._blocks.rows.values() for block in row.blocks]
    assert sorted(held + drafter._blocks.free) == list(range(num_blocks))


@every_family
def test_right_drafts_change_no_byte(family, chains, pool):
    plain, tapped = loaded(chains[family], pool), loaded(chains[family], pool)
    planner = played_alike(Bench(plain), 1, drafter_for(tapped, chains[family], pool), ranks=Bench(tapped))
    assert planner.drafts["accepted"] > 0


@every_family
def test_a_head_that_knows_the_text_is_right_from_the_first_token_on_in_every_row(family, chains, pool):
    model = loaded(chains[family], pool)
    drafter = drafter_for(model, chains[family], pool)
    for prompt in (PROMPT, PROMPT[::-1][:11], PROMPT[5:]):
        row = Row(model, drafter, prompt, GREEDY)
        for _ in range(3):
            assert counts(row.verify(5)) == ([5], [6])


@pytest.mark.parametrize(("family", "whole"), [("glm4-moe", "Glm4vMoe"), ("qwen3.5", "Qwen3_5")])
def test_a_head_is_right_in_a_model_that_reads_images(family, whole, pool, tmp_path):
    found = made_chain(family, tmp_path)
    found.tensors = {name.replace("model.", "model.language_model.", 1): each for name, each in found.tensors.items()}
    found.tensors["model.visual.weight"] = torch.ones(3, 3)
    found.save()
    text = json.loads((tmp_path / "config.json").read_text())
    fields = {"architectures": [f"{whole}ForConditionalGeneration"], "text_config": text | {"model_type": ""}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    model = loaded(tmp_path, pool)
    assert counts(Row(model, drafter_for(model, tmp_path, pool), PROMPT, GREEDY).verify(5)) == ([5], [6])


def test_the_first_draft_is_right_by_the_hidden_state_alone(pool, tmp_path):
    """A hidden state of another token, or beside another token, would make it wrong."""
    made_chain("glm4-moe", tmp_path, reads_hidden=True)
    model = loaded(tmp_path, pool)
    row = Row(model, drafter_for(model, tmp_path, pool), PROMPT, GREEDY)
    for _ in range(4):
        assert counts(row.verify(3)) == ([3], [2])
        row.decoded(2)


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"dtype": "float16"}], ids=str)
def test_a_head_drafts_in_the_form_of_its_target(options, chains, pool):
    model = loaded(chains["glm4-moe"], pool, **options)
    row = Row(model, drafter_for(model, chains["glm4-moe"], pool, **options), PROMPT, GREEDY)
    assert counts(row.verify(5)) == ([5], [6])


@pytest.mark.parametrize(("family", "name"), [("deepseek-v3", "fp8-16"), ("glm4-moe", "ct-w4a16-channel")])
def test_a_quantized_head_is_the_float_head_of_its_codes(family, name, tmp_path):
    made(family, tmp_path / "source", torch.float16)
    write_quantized(tmp_path / "source", tmp_path / "quantized", name)
    found = []
    for folder in (tmp_path / "quantized", tmp_path / "quantized-float"):
        model = loaded(folder, None, dtype="float32")
        drafter = drafter_for(model, folder, None, kind=WithLogits)
        Row(model, drafter, PROMPT, GREEDY).verify(3)
        found.append(torch.cat(drafter._head.logits))
    assert (found[0] - found[1]).abs().max() < 1e-5 * found[1].abs().max()


# --- ranks ---


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    ranks = Ranks(2, tmp_path_factory.mktemp("ranks") / "rendezvous")
    yield ranks
    ranks.close()


@pytest.mark.parametrize("family", ["glm4-moe", pytest.param("deepseek-v3", marks=pytest.mark.nightly), "qwen3-next"])
def test_on_two_ranks_right_drafts_change_no_byte(family, chains, pool, two_ranks):
    folder = chains[family]
    ranks = SharedModel(two_ranks, lambda group: loaded(folder, None, group))
    drafter = drafter_for(ranks.of_rank[0], folder, None)
    planner = played_alike(Bench(loaded(folder, None)), 1, drafter, ranks=Bench(ranks), most_requests=2)
    assert planner.drafts["accepted"] > 0


# --- tables ---


def test_tables_that_repeat_those_of_the_target_are_not_loaded_twice(chains, pool):
    for family in ("glm4-moe", "qwen3-next"):
        model = loaded(chains[family], pool)
        head = drafter_for(model, chains[family], pool)._head._head
        assert head.embedding is model.embedding
        assert head.output_head is model.output_head


def test_a_head_beside_adapters_does_not_use_the_tables_that_they_change(chains, pool):
    """What the target's would add belongs to the rows and tokens of its last step."""
    config, folder = ModelConfig(device="cpu"), chains["glm4-moe"]
    lora = LoraConfig(max_loras=1)
    model = load_model(str(folder), config, TensorParallelGroup(), lambda done, total: None, pool, lora=lora)
    drafter = drafter_for(model, folder, pool)
    head = drafter._head._head
    assert head.embedding is not model.embedding
    assert head.output_head is not model.output_head
    assert counts(Row(model, drafter, PROMPT, GREEDY).verify(5)) == ([5], [6])


def test_a_head_uses_its_own_tables_if_they_differ(pool, tmp_path):
    found = made_chain("glm4-moe", tmp_path)
    table, head = found.tables
    order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    moved = found.tensors[table][order]
    found.tensors[table] = moved
    rows = 2 * found.tensors[head]
    found.tensors[head] = rows
    found.save()
    model = loaded(tmp_path, pool)
    drafter = drafter_for(model, tmp_path, pool)
    own = drafter._head._head
    assert own.embedding is not model.embedding
    assert torch.equal(own.embedding(torch.arange(VOCAB_SIZE)), moved)
    Row(model, drafter, PROMPT, GREEDY).verify(4)
    one = torch.eye(moved.shape[1], dtype=moved.dtype)[:4]
    assert torch.equal(own.logits(one), rows.float().T[:4])


# --- the configuration ---


def config_for(folder, **changes):
    return Config(
        model=ModelConfig(model=str(folder), device="cpu"),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=SchedulerConfig(max_num_seqs=NUM_ROWS),
        speculation=SpeculationConfig(**{"method": "mtp"} | changes),
    )


@every_family
def test_the_head_of_the_configuration_drafts(family, chains, pool):
    folder = chains[family]
    model = loaded(folder, pool)
    assert draft_source_of(config_for(folder), folder, model, pool, rank=1) is None
    source = draft_source_of(config_for(folder), folder, model, pool, rank=0)
    of_layer = model.geometry.kv_bytes_per_block(BLOCK_SIZE, 1, model.dtype, 1)
    of_taps = 2048 * model.geometry.hidden_size * 2
    of_experts = expert_rows_bytes(model.geometry, 2048 + 64 * NUM_ROWS)
    assert source.cache_bytes == source.num_blocks * of_layer + of_taps + of_experts
    row = Row(model, source.drafter(SchedulerConfig(max_num_seqs=NUM_ROWS)), PROMPT, GREEDY)
    assert counts(row.verify(4)) == ([4], [5])


def test_what_cannot_draft_is_refused_by_name(pool, tmp_path):
    def refused(match, folder, **changes):
        with pytest.raises(ConfigError, match=match):
            draft_source_of(config_for(folder, **changes), folder, loaded(folder, pool), pool, rank=0)

    plain = write_tiny_model(tmp_path)
    refused("layers for multi-token prediction of llama are not supported; those of Glm4MoeForCausalLM, .* are", plain)
    refused("speculative='mtp'.*; use --speculative suffix", plain)
    refused("speculative='mtp' and draft_model='/a' do not fit together", plain, draft_model="/a")


@every_family
def test_a_damaged_layer_is_refused_by_name(family, pool, tmp_path):
    found = made(family, tmp_path)
    whole, model = dict(found.tensors), loaded(tmp_path, pool)

    def refused(match, change):
        tensors = found.tensors
        tensors.clear()
        tensors |= whole
        change(tensors)
        found.save()
        with pytest.raises(ConfigError, match=f"speculative='mtp': .*{match}.*; use --speculative suffix"):
            draft_source_of(config_for(tmp_path), tmp_path, model, pool, rank=0)

    def all_of_the_layer(tensors):
        beginning = found.joining.rpartition(".")[0]
        for name in [name for name in tensors if name.startswith(beginning)]:
            del tensors[name]

    joining = f"{found.joining}.weight"
    of_layer = found.layer + ("mlp.up_proj.weight" if family == "qwen3.5" else "mlp.experts.1.up_proj.weight")
    refused(f"no tensor {joining}, nor any other of a layer for multi-token prediction: .* without", all_of_the_layer)
    for name in (joining, *found.norms, f"{found.layer}self_attn.o_proj.weight", of_layer):
        refused(f"has no tensor {name}", lambda tensors, name=name: tensors.pop(name))
        narrow = whole[name][..., :-8]
        refused(f"tensor {name} has shape", lambda tensors, name=name, narrow=narrow: tensors.update({name: narrow}))
    refused(
        f"does not explain: {found.joining}.bias", lambda tensors: tensors.update({f"{found.joining}.bias": narrow})
    )
