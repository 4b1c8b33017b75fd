"""Models of GGUF blocks that the CPU kernels multiply as they are: accuracy, and the same bits however they compute."""

import json
from pathlib import Path

import pytest
import torch

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.checkpoint.blocks.block_weight import PRODUCT_FORMATS
from paged_serve.workers.checkpoint.blocks.grids import GRIDS
from paged_serve.workers.checkpoint.gguf import gguf_checkpoint
from paged_serve.workers.kernels.cpu import library as cpu

from ...gguf_files import Type, write_gguf
from ..paged_loop import PagedLoop
from ..ranks import arithmetic_of_ranks, on_ranks
from ..tiny_models.checkpoints import ours, random_tokens
from .models import dequantize_folder, write_model

PROMPT = random_tokens(40)
FORMATS = [pytest.param(Type[name], marks=[pytest.mark.nightly] * (name in GRIDS)) for name in PRODUCT_FORMATS]
MOST_ERROR = 0.05  # of logits, relative: activations in int8 cost 0.5 % in each product


def q4_k_m(name: str) -> Type:
    """The types that llama.cpp gives a model in Q4_K_M: more bits for values, some down projections and the head."""
    is_fine = "lm_head" in name or "v_proj" in name or "layers.1.mlp.down_proj" in name
    return Type.Q6_K if is_fine else Type.Q4_K


@pytest.fixture(scope="module")
def made(tmp_path_factory, make_pool) -> Path:
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    folder = tmp_path_factory.mktemp("mixture")
    write_model("wide", folder / "folder", torch.bfloat16)
    file = write_gguf(folder / "folder", folder / "model.gguf", lambda name, tensor: q4_k_m(name))
    return make_folder(file, folder / "made")


def logits(folder: Path, chunk: int = 1 << 30, **options) -> torch.Tensor:
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT), chunk)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_logits_are_close_to_those_of_the_packages_values(kind, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    folder = write_model("wide", tmp_path / "folder", torch.bfloat16)
    file = write_gguf(folder, tmp_path / "model.gguf", lambda name, tensor: kind)
    model = ours(make_folder(file, tmp_path / "made"), "float32", pool=pool)
    assert model.quantization["quantization"] == f"16 matrices {kind.name}"
    loop = PagedLoop(model)
    found = loop.prefill(loop.row(PROMPT))
    dequantize_folder(folder, lambda name: kind)
    exact = logits(folder, dtype="float32")
    assert (found - exact).norm() < MOST_ERROR * exact.norm()


def test_a_mixture_of_types_runs_entirely_in_its_blocks(made, make_pool, tmp_path):
    model = ours(made, "float32", pool=make_pool())
    assert model.quantization["quantization"] == "12 matrices Q4_K, 4 matrices Q6_K"
    loop = PagedLoop(model)
    found = loop.prefill(loop.row(PROMPT))
    folder = write_model("wide", tmp_path / "folder", torch.bfloat16)
    dequantize_folder(folder, q4_k_m)
    exact = logits(folder, dtype="float32")
    assert (found - exact).norm() < MOST_ERROR * exact.norm()
    first, second = exact.topk(2).values.unbind(1)
    is_clear = first - second > 2 * (found - exact).abs().amax(1)
    assert is_clear.float().mean() > 0.5
    assert torch.equal(found.argmax(1)[is_clear], exact.argmax(1)[is_clear])


def test_every_instruction_set_has_the_same_bits(made, make_pool):
    every = [logits(made, pool=cpu.Pool(cpu.load_library(isa), [-1], summation="dot")) for isa in cpu.runnable_isas()]
    assert all(torch.equal(found, every[0]) for found in every)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_two_ranks_and_chunks_and_decode_steps_have_the_same_bits(made, make_pool, tmp_path, dtype):
    expected, pools = logits(made, pool=make_pool(), dtype=dtype), [make_pool(), make_pool()]
    for chunk in (1, 7, 33):
        assert torch.equal(logits(made, chunk, pool=pools[0], dtype=dtype), expected)

    def on_rank(group):
        return logits(made, pool=pools[group.rank], group=group, dtype=dtype)

    for found in on_ranks(2, tmp_path / "rendezvous", on_rank):
        assert torch.equal(found, expected)


def test_a_mixture_of_all_grids_is_close_to_the_packages_values_on_one_rank_and_has_its_bits_on_two(
    tmp_path, make_pool
):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    folder, names = write_model("wide", tmp_path / "folder", torch.bfloat16), []

    def kind_of(name: str) -> Type:
        names.extend([name] * (name not in names))
        return Type[GRIDS[names.index(name) % len(GRIDS)]]

    made = make_folder(
        write_gguf(folder, tmp_path / "model.gguf", lambda name, tensor: kind_of(name)), tmp_path / "made"
    )
    pools = [make_pool(), make_pool()]
    found = logits(made, pool=pools[0], dtype="float32")
    assert torch.equal(logits(made, 7, pool=pools[0], dtype="float32"), found)
    for share in on_ranks(
        2, tmp_path / "rendezvous", lambda group: logits(made, pool=pools[group.rank], group=group, dtype="float32")
    ):
        assert torch.equal(share, found)
    dequantize_folder(folder, kind_of)
    exact = logits(folder, dtype="float32")
    assert (found - exact).norm() < MOST_ERROR * exact.norm()


def test_ranks_whose_shares_cut_groups_have_an_arithmetic_of_their_own(tmp_path, make_pool):
    """They multiply floats where one rank multiplies blocks; so do shares from a file of packed weights."""
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    folder = write_model("llama", tmp_path / "folder", torch.bfloat16)  # the inputs of its down projections are 2 x 48
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf", lambda name, tensor: Type.Q8_0), tmp_path / "made")
    of_one, of_two = arithmetic_of_ranks(made, make_pool, tmp_path)
    assert of_two == [[f"{of_one} 2 ranks"] * 3] * 2


def test_packed_blocks_are_kept_and_read(made, make_pool, tmp_path, caplog):
    expected, kept = logits(made, pool=make_pool()), {"packed_weights_dir": str(tmp_path)}
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert torch.equal(logits(made, pool=make_pool(), **kept), expected)
    assert "packed weights were read from" in caplog.text


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "gpt-oss"])
def test_experts_in_blocks_are_served_and_it_is_said_how(name, kind, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    folder = write_model(name, tmp_path / "folder", torch.bfloat16)
    file = write_gguf(folder, tmp_path / "model.gguf", lambda name, tensor: kind)
    model_folder = make_folder(file, tmp_path / "made")
    model = ours(model_folder, pool=pool)
    held = model.quantization["quantization"]
    assert f"matrices {kind.name}" in held
    assert "held as float" not in held
    loop, exact = PagedLoop(model), logits(folder, pool=pool)
    found = loop.prefill(loop.row(PROMPT))
    assert kind == Type.Q4_0 or (found - exact).norm() < 0.2 * exact.norm()  # fewer bits choose other experts
    for chunk in (1, 9):
        assert torch.equal(logits(model_folder, chunk, pool=pool), found)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q8_0], ids=lambda kind: kind.name)
def test_experts_have_the_values_that_the_package_dequantizes(kind, tmp_path):
    folder = write_model("mixtral", tmp_path / "folder", torch.bfloat16)
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf", lambda name, tensor: kind), tmp_path / "made")
    dequantize_folder(folder, lambda name: None if ".gate." in name else kind)
    assert torch.equal(logits(made, dtype="float32"), logits(folder, dtype="float32"))


def test_a_file_with_more_matrices_than_any_model_has_is_refused(tmp_path, monkeypatch):
    file = write_gguf(write_model("olmoe", tmp_path / "folder", torch.bfloat16), tmp_path / "model.gguf")
    made = make_folder(file, tmp_path / "made")
    monkeypatch.setattr(gguf_checkpoint, "MAX_MATRICES", 20)
    with pytest.raises(ConfigError, match=r"with the experts of blk.\d.ffn_\w+_exps.weight there are over 20 matrices"):
        ours(made)


def test_gate_and_up_of_experts_in_two_formats_are_refused_with_both_and_a_remedy(tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    folder = write_model("mixtral", tmp_path / "folder", torch.bfloat16)
    kind = lambda name, tensor: Type.Q8_0 if ".w1." in name else Type.Q4_0  # noqa: E731
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf", kind), tmp_path / "made")
    with pytest.raises(ConfigError, match=r"experts\.0\.w1: .* these are Q4_0, Q8_0; .* --quantization int8"):
        ours(made, pool=pool)
    assert "matrices int8" in ours(made, pool=pool, quantization="int8").quantization["quantization"]


def test_a_tensor_of_experts_needs_a_matrix_for_each(tmp_path):
    folder, file = write_model("olmoe", tmp_path / "folder", torch.bfloat16), tmp_path / "model.gguf"
    made = make_folder(write_gguf(folder, file), tmp_path / "made")
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"num_experts": 7}))
    with pytest.raises(ConfigError, match=r"router model.layers.0.mlp.gate.weight has shape \[6, 64\]"):
        ours(made)
