"""Steps that verify drafts give the tokens and logprobs of plain decoding, bit for bit, whatever is drafted."""

from collections import Counter

import pytest
import torch

from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.speculation.ngram import NgramDrafter

from ..invariance.workloads.random_workload import ModelChoice
from ..invariance.workloads.workload_models import Models
from ..tiny_models.recurrent_variants import RECURRENT_VARIANTS
from .workloads import TOKENIZER, TOKENS_OF_GRAMMARS, Bench, played_alike

FORMS = {  # checkpoint, quantization, dtype of weights, of the cache
    "bfloat16": ("llama", "auto", "auto", None),
    "float16": ("llama", "auto", "float16", None),
    "float32": ("llama-float32", "auto", "auto", None),
    "int8": ("llama", "int8", "auto", None),
    "int4": ("llama", "int4", "auto", None),
    "int8 cache": ("qwen3", "auto", "auto", torch.int8),
    "windows in groups": ("grouped", "auto", "auto", None),
    "experts": ("experts", "auto", "auto", None),
    "latent attention": ("latent", "auto", "auto", None),
    "short convolutions": ("states", "auto", "auto", None),
    "gated delta nets, int8": ("qwen3-next", "int8", "auto", None),
    **{name: (name, "auto", "auto", None) for name in RECURRENT_VARIANTS},
}
SLICE = (
    *("int4", "int8 cache", "windows in groups", "experts", "latent attention"),
    *("short convolutions", "gated delta nets, int8", "jamba", "falcon-h1"),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory, chosen_isa):
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    loaded = Models(tmp_path_factory.mktemp("models"), chosen_isa)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def load(models):
    def load(form: str, threads: int = 1, ranks: int = 1) -> Bench:
        checkpoint, quantization, dtype, cache_dtype = FORMS[form]
        choice = ModelChoice(checkpoint, quantization, cpu.runnable_isas()[0], threads, ranks, dtype)
        return Bench(models.load(choice), cache_dtype=cache_dtype)

    return load


@pytest.fixture(scope="module")
def demo(models):
    """The demo model, in whose vocabulary grammars are."""
    model = models.load(ModelChoice("demo", "auto", cpu.runnable_isas()[0], threads=1))
    return Bench(model, Grammars(TOKENIZER, TOKENS_OF_GRAMMARS, (2, 0)))


def drafts_of(bench: Bench, seeds, **options) -> Counter[str]:
    return sum((played_alike(bench, seed, **options).drafts for seed in seeds), Counter[str]())


def test_any_drafts_give_the_bytes_of_plain_decoding(demo):
    drafts = drafts_of(demo, range(4))
    assert drafts["accepted"] > 50
    assert drafts["made"] > drafts["accepted"] + 50


@pytest.mark.parametrize("form", SLICE)
def test_any_model_keeps_its_bytes(load, form):
    assert drafts_of(load(form), range(1))["accepted"] > 10


def test_drafts_from_the_text_keep_its_bytes(demo):
    assert drafts_of(demo, range(20, 22), drafter=NgramDrafter())["accepted"] > 10


def test_two_ranks_take_the_same_rounds(load):
    assert drafts_of(load("bfloat16"), (31, 32), ranks=load("bfloat16", ranks=2))["accepted"] > 10


def test_two_ranks_advance_their_states_alike(load):
    form = "short convolutions"
    assert drafts_of(load(form), (31, 32), ranks=load(form, ranks=2))["accepted"] > 10


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("form", FORMS)
def test_many_workloads_of_any_model_keep_their_bytes(load, form):
    drafts_of(load(form), range(100, 200))
    drafts_of(load(form), range(200, 220), drafter=NgramDrafter())
    drafts_of(load(form, threads=2), range(220, 240))
    if form != "int4":  # 96 inputs are three groups of 32
        drafts_of(load(form), range(300, 330), ranks=load(form, ranks=2))


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_workloads_with_grammars_keep_their_bytes(demo):
    drafts_of(demo, range(400, 700))
    drafts_of(demo, range(700, 800), drafter=NgramDrafter())
