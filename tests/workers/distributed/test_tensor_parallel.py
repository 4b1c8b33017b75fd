"""Ranks that share a model have the output of one rank."""

import subprocess
import sys

import pytest
import torch

from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.process.rank import DEMO_MODEL

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.tiny_model import write_tiny_model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_sum_is_taken_in_rank_order_whatever_its_shape(dtype, tmp_path):
    parts = (1000 * torch.randn(3, 40, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    expected = ((parts[0].float() + parts[1].float()) + parts[2].float()).to(dtype)

    def work(group):
        whole = group.all_reduce(parts[group.rank])
        one_row = group.all_reduce(parts[group.rank, 17:18])
        transposed = group.all_reduce(parts[group.rank].T).T
        return whole, one_row, transposed

    for whole, one_row, transposed in on_ranks(3, tmp_path / "rendezvous", work):
        assert torch.equal(whole, expected)
        assert torch.equal(one_row, expected[17:18])
        assert torch.equal(transposed, expected)


def test_gathering_joins_in_rank_order_and_broadcast_sends_the_source(tmp_path):
    def work(group):
        gathered = group.all_gather(torch.full((2, 3), group.rank), dim=1)
        return gathered, group.broadcast(torch.tensor([group.rank, 7]), source=1)

    for gathered, sent in on_ranks(2, tmp_path / "rendezvous", work):
        assert gathered.tolist() == [[0, 0, 0, 1, 1, 1]] * 2
        assert sent.tolist() == [1, 7]


def test_a_group_of_one_exchanges_nothing():
    group, x = TensorParallelGroup.join(0, 1, "/nowhere/at/all"), torch.ones(2)
    assert group.all_reduce(x) is group.all_gather(x, 0) is group.broadcast(x) is x


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "variant",
    [
        *("llama-3.1", "qwen2-upper-layers-slide"),
        *(pytest.param(variant, marks=pytest.mark.nightly) for variant in ("llama-linear-biased", "qwen3", "gpt2")),
    ],
)
def test_ranks_together_generate_the_text_of_one(variant, size, tmp_path, pool):
    """The vocabulary of 199 cannot be divided equally, and with four ranks each KV head is on two ranks."""
    write_checkpoint(variant, tmp_path)
    expected = PagedLoop(ours(tmp_path, pool=pool)).greedy(random_tokens(50), 20)

    def work(group):
        return PagedLoop(ours(tmp_path, group=group, pool=pool)).greedy(random_tokens(50), 20, chunk=20)

    assert on_ranks(size, tmp_path / "rendezvous", work) == [expected] * size


WAYS = [
    *({"dtype": dtype} for dtype in ("bfloat16", "float16", "float32")),
    *({"quantization": kind, "dtype": dtype} for kind in ("int8", "int4") for dtype in ("auto", "float16")),
]
# A product has the same bits on each instruction set (test_isa_bits.py), so all ways on the best one and one or two
# ways on another make the fast run.
ISAS = cpu.runnable_isas()
WAYS_OF_ISAS = [
    pytest.param(
        isa,
        way,
        id="-".join((isa, *way.values())),
        marks=[pytest.mark.nightly] if place and (number - place - 1) % 6 else [],
    )
    for place, isa in enumerate(ISAS)
    for number, way in enumerate(WAYS)
]


def prompt_and_answer(model):
    """The bits of hidden states and logits: of a prompt, computed in chunks, and of a few greedy tokens."""
    loop = PagedLoop(model)
    row = loop.row(random_tokens(70))
    hidden = []
    for count in (50, 20):
        row_hidden = loop.hidden([(row, count)])
        hidden.append(row_hidden.clone())
    logits = model.logits(hidden[-1]).clone()
    for _ in range(2):
        row.token_ids.append(int(logits[-1].argmax()))
        hidden.append(loop.hidden([(row, 1)]).clone())
        logits = torch.cat([logits, model.logits(hidden[-1])])
    return torch.cat(hidden), logits


@pytest.mark.parametrize(("isa", "options"), WAYS_OF_ISAS)
def test_ranks_together_have_the_bits_of_one(options, isa, tmp_path):
    """Two and four ranks on every instruction set; with four ranks each has one of the demo model's KV heads."""
    pools = [cpu.Pool(cpu.load_library(isa), [-1]) for _ in range(4)]
    expected = prompt_and_answer(ours(DEMO_MODEL, pool=pools[0], **options))
    for size in (2, 4):

        def work(group):
            return prompt_and_answer(ours(DEMO_MODEL, group=group, pool=pools[group.rank], **options))

        for found in on_ranks(size, tmp_path / f"rendezvous-{size}", work):
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    for pool in pools:
        pool.close()


EARLY = [
    *("llama-linear-biased", "qwen3", "llama-multi-query", "opt", "opt-350m", "gpt2", "phi3", "starcoder2"),
    *("gpt-bigcode", "gemma3", "granite", "smollm3", "gemma2", "bloom-even", "falcon-two-norms", "olmo2", "glm4"),
    *("llama4", "stablelm-qk-norm", "qwen2-moe", "glm4-moe", "llama4-experts", "gpt-oss"),
    *("mamba2", "granite4", "qwen3-next", "qwen3.5", "kimi-linear", "nemotron-h", "falcon-mamba", "jamba", "falcon-h1"),
    *("minimax", "bailing-hybrid", "diffllama", "jetmoe"),
    *("gemma4", "gemma4-experts", "gemma3n", "cohere2-moe", "codegen"),
]
NIGHTLY = [
    *("mamba", "mamba-biased", "jamba-dense", "mamba2-biased", "granite4-dense", "bamba", "nemotron-h-dense"),
    *("olmo-hybrid", "olmo-hybrid-rotated", "lara-mini"),
    *("falcon-h1-with-norms", "mixtral", "qwen3-moe", "olmoe", "phimoe", "granitemoe"),
    *("cohere-qk-norm", "phi-qk-norm", "nemotron", "arcee", "falcon-alibi", "mpt"),
    *("gpt-neo", "gpt-neox", "gptj", "falcon", "falcon-in-turn", "phi", "stablelm-parallel", "cohere", "cohere2"),
    *("granite-swa", "granitemoe-swa", "ministral", "cwm", "vaultgemma", "hyperclovax", "jais2", "mellum"),
    *("apertus", "apertus1p5", "laguna", "mimo-v2", "mistral4", "longcat-flash", "persimmon", "xglm", "dbrx"),
    "modernbert-decoder",
    *(
        "flint",
        "mllama",
        "phi4-multimodal",
        "cohere-compass",
        "bitnet",
        "aria",
        "kolibri1",
        "axk1",
        "nanochat",
        "youtu",
        "hy-v3",
        "lfm3",
    ),
    *("gemma4-keys-as-values", "olmo-clipped", "olmo3", "glm", "exaone4", "phi3-longrope"),
]
# One of the two numbers of ranks makes the fast run: mostly two, as four take twice the time.
NUMBERS_OF_RANKS = [
    pytest.param(
        variant, size, marks=[] if variant in EARLY and size == (4, 2, 2)[place % 3] else [pytest.mark.nightly]
    )
    for place, variant in enumerate(EARLY + NIGHTLY)
    for size in (2, 4)
]


@pytest.mark.parametrize(("variant", "size"), NUMBERS_OF_RANKS)
def test_biases_norms_and_shared_kv_heads_change_no_bit(variant, size, tmp_path, make_pool):
    pools = [make_pool() for _ in range(size)]
    if pools[0] is None:
        pytest.skip("the kernels are not built")
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    expected = prompt_and_answer(ours(tmp_path, pool=pools[0]))

    def work(group):
        return prompt_and_answer(ours(tmp_path, group=group, pool=pools[group.rank]))

    for found in on_ranks(size, tmp_path / "rendezvous", work):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_ranks_keep_a_rows_bits_as_one_rank_does(tmp_path, pool, row_variant):
    write_checkpoint("qwen3", tmp_path, torch.bfloat16)

    def work(group):
        model, results = ours(tmp_path, group=group, pool=pool), []
        for chunk in (1000, 13):
            loop = PagedLoop(model, seed=chunk)
            results.append(loop.prefill(loop.row(random_tokens(60)), chunk))
        return results

    for whole, chunked in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(whole, chunked)


def test_each_rank_reads_only_its_share(tmp_path):
    write_tiny_model(tmp_path)
    whole = ours(tmp_path)
    ranks = on_ranks(2, tmp_path / "rendezvous", lambda group: ours(tmp_path, group=group))
    heads, kv_heads, head_dim = 4, 2, 16
    query, key, value = whole.layers[0].mixer.qkv.weight.split(
        [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    )
    for rank, model in enumerate(ranks):
        expected = torch.cat([part.chunk(2)[rank] for part in (query, key, value)])
        assert torch.equal(model.layers[0].mixer.qkv.weight, expected)
        assert model.layers[0].feed_forward.down.share.weight.shape == (64, 48)
        assert model.weights_bytes < 0.54 * whole.weights_bytes


OTHER_RANK = """
import sys, torch
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
group = TensorParallelGroup.join(1, 2, sys.argv[1], timeout_s=600)
print(group.all_reduce(torch.tensor([1.5 + group.rank])).item())
"""


@pytest.mark.timeout(600)  # torch's libraries may have to be read from a busy disk
def test_processes_meet_at_a_file(tmp_path):
    rendezvous = str(tmp_path / "rendezvous")
    other = subprocess.Popen([sys.executable, "-c", OTHER_RANK, rendezvous], stdout=subprocess.PIPE, text=True)
    try:
        group = TensorParallelGroup.join(0, 2, rendezvous, timeout_s=600)
        assert group.all_reduce(torch.tensor([1.5])).item() == 4.0
        assert other.communicate()[0].strip() == "4.0"
        group.close()
    finally:
        other.kill()
        other.wait()
