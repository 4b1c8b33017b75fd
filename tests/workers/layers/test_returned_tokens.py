"""A model's last layer computes only the tokens that a step returns, to the bits that it gives when it returns all."""

from dataclasses import replace

import pytest
import torch

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import VARIANTS, ours, random_tokens, write_checkpoint

QUICK = (
    *("llama", "gpt-neox", "stablelm-parallel", "opt-350m", "gemma2", "qwen3-moe", "lfm2", "qwen3-next", "nemotron-h"),
    *("bamba", "jamba", "falcon-h1", "deepseek-v3", "glm-5"),
)
FAMILIES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in VARIANTS]


class SomeTokens:
    """A mixer that is also asked for its result of some tokens, and compares it with that of all."""

    def __init__(self, mixer, tokens):
        self._mixer = mixer
        self._tokens = tokens

    def __call__(self, step, normed):
        before, kept = [states.clone() for states in step.view.cache.states], normed.clone()
        all_tokens = self._mixer(step, normed).clone()  # a mixer with a norm inside overwrites its input
        for states, old in zip(step.view.cache.states, before, strict=True):
            states.copy_(old)
        some = self._mixer(replace(step, returned_tokens=self._tokens), kept)
        assert torch.equal(some, all_tokens[self._tokens])
        return all_tokens


@pytest.fixture(params=FAMILIES)
def model(request, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    write_checkpoint(request.param, tmp_path)
    return ours(tmp_path, "bfloat16", pool=pool)


def test_hidden_states_of_some_tokens_are_those_of_all(model):
    tokens = torch.tensor([0, 1, 6, 41])
    loops = [PagedLoop(model), PagedLoop(model)]
    found = []
    for loop, returned in zip(loops, (None, tokens), strict=True):
        rows = [loop.row(random_tokens(90, seed)) for seed in range(3)]
        loop.hidden([(rows[0], 20), (rows[1], 3)])
        some = loop.hidden([(rows[0], 1), (rows[1], 6), (rows[2], 35)], returned).clone()
        found.append((some, loop.hidden([(row, 5) for row in rows]).clone()))
    (all_tokens, later), (some, later_of_some) = found
    assert torch.equal(some, all_tokens[tokens])
    assert torch.equal(later_of_some, later), "the last layer's keys and values, or states, differ"


def test_each_layer_gives_the_same_bits_for_some_tokens(model):
    tokens = torch.tensor([0, 2, 30])
    watched = replace(model, layers=[replace(each, mixer=SomeTokens(each.mixer, tokens)) for each in model.layers])
    loop = PagedLoop(watched)
    loop.hidden([(loop.row(random_tokens(31)), 31)])
