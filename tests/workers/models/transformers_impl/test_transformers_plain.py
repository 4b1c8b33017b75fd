"""Models of transformers whose modules are all ours: steps leave the library out, with the same bits."""

from dataclasses import replace

import pytest
import torch

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens
from ...tiny_models.transformers_models import is_of_transformers, write
from .test_transformers_refusals import write_own

PROMPT = random_tokens(150, vocab_size=256)
LATE = "torch.where(kwargs['position_ids'] >= {first}, 2.0, 1.0).unsqueeze(-1)"


def model_in(folder, pool, **options):
    model = ours(folder, pool=pool, model_impl="transformers", trust_remote_code=True, **options)
    assert is_of_transformers(model)
    return model


@pytest.fixture
def pool(make_pool):
    if (made := make_pool()) is None:
        pytest.skip("the kernels are not built")
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_plain_decoder_has_the_bits_of_the_librarys_code(dtype, tmp_path, pool):
    write("Ministral", tmp_path)
    model = model_in(tmp_path, pool, dtype=dtype)
    assert model.plain is not None
    with_library = replace(model, plain=None)
    loops = [PagedLoop(each, num_blocks=256, max_model_len=512) for each in (model, with_library)]
    found, expected = (loop.prefill(loop.row(PROMPT), chunk=64) for loop in loops)
    assert torch.equal(found, expected)
    assert loops[0].greedy(PROMPT[:30], 20) == loops[1].greedy(PROMPT[:30], 20)


def test_a_model_with_code_of_its_own_around_the_layers_keeps_it(tmp_path, pool):
    write("VaultGemma", tmp_path)
    assert model_in(tmp_path, pool).plain is None


@pytest.mark.parametrize(
    ("result", "is_plain"), [("x", True), ("x * 1.5", False), (f"x * {LATE.format(first=500)}", False)]
)
def test_code_that_acts_only_at_far_positions_is_seen(result, is_plain, tmp_path, pool):
    write_own(tmp_path, result)
    assert (model_in(tmp_path, pool, max_model_len=512).plain is not None) == is_plain
