"""A model from a GGUF file has the bits of the same model from its Hugging Face folder."""

import random
from pathlib import Path

import pytest
import torch

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import read_gguf

from ...gguf_files import Type, write_gguf
from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens
from .models import MODELS, dequantize_folder, write_model

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
FLOATS = [name for name in MODELS if name != "wide"]
PROMPT = random_tokens(56)
OFTEN = [Type.Q4_0, Type.Q8_0, Type.Q4_K, Type.Q6_K]
SELDOM = [Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q2_K, Type.Q3_K, Type.Q5_K]
BLOCKS = [*OFTEN, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in SELDOM)]


def logits(folder: Path, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT))


def converted(folder: Path, tmp_path: Path, kind=None, **more) -> Path:
    file = write_gguf(folder, tmp_path / "model.gguf", kind and (lambda name, tensor: kind), **more)
    return make_folder(file, tmp_path / "made")


@pytest.mark.parametrize(("name", "dtype"), [(name, DTYPES[i % 3]) for i, name in enumerate(FLOATS)])
def test_logits_of_floats_are_those_of_the_folder(name, dtype, tmp_path, make_pool):
    folder, pool = write_model(name, tmp_path / "folder", dtype), make_pool()
    model = ours(converted(folder, tmp_path), pool=pool)
    assert model.dtype == dtype
    assert not model.quantization
    loop = PagedLoop(model)
    assert torch.equal(loop.prefill(loop.row(PROMPT)), logits(folder, pool=pool))


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_logits_of_blocks_are_those_of_the_values_that_the_package_dequantizes(kind, tmp_path):
    folder = write_model("wide", tmp_path / "folder", torch.float32)
    made = converted(folder, tmp_path, kind)
    dequantize_folder(folder, lambda name: kind)
    for dtype in ("float32", "bfloat16"):
        model = ours(made, dtype)
        loop = PagedLoop(model)
        assert torch.equal(loop.prefill(loop.row(PROMPT)), logits(folder, dtype=dtype))
        assert f"15 matrices {kind.name} held as float" in model.quantization["quantization"]


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_K, Type.Q6_K], ids=lambda kind: kind.name)
def test_two_ranks_have_the_bits_of_one_though_they_divide_blocks(kind, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    made = converted(write_model("wide", tmp_path / "folder", torch.bfloat16), tmp_path, kind)
    pools = [make_pool(), make_pool()]

    def on_rank(group):
        return logits(made, pool=pools[group.rank], group=group)

    for found in on_ranks(2, tmp_path / "rendezvous", on_rank):
        assert torch.equal(found, logits(made, pool=pool))


def test_a_model_of_blocks_is_quantized_on_load(tmp_path):
    made = converted(write_model("wide", tmp_path / "folder", torch.bfloat16), tmp_path, Type.Q8_0)
    model = ours(made, quantization="int8")
    assert model.quantization["quantization"] == "15 matrices int8"
    loop = PagedLoop(model)
    exact = logits(made)
    assert 0 < (loop.prefill(loop.row(PROMPT)) - exact).norm() < 0.1 * exact.norm()


def test_formats_may_differ_from_matrix_to_matrix(tmp_path):
    folder = write_model("wide", tmp_path / "folder", torch.bfloat16)

    def kind(name, tensor):
        return Type.Q6_K if "v_proj" in name else Type.Q4_0 if "mlp" in name else Type.F16

    file = write_gguf(folder, tmp_path / "model.gguf", kind)
    model = ours(make_folder(file, tmp_path / "made"))
    facts = model.quantization["quantization"]
    assert facts == "6 matrices Q4_0 held as float, 2 matrices Q6_K held as float, 7 matrices float"


def test_a_model_in_parts_is_the_same_model(tmp_path):
    folder = write_model("qwen3", tmp_path / "folder", torch.bfloat16)
    write_gguf(folder, tmp_path / "model.gguf", tensors_per_part=9)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) > 2
    made = make_folder(parts[0], tmp_path / "made")
    assert torch.equal(logits(made), logits(folder))
    parts[1].unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-\d+\.gguf is not in the same folder"):
        make_folder(parts[0], tmp_path / "made")


def test_packed_weights_are_kept_and_read_like_those_of_a_folder(tmp_path, make_pool, caplog):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    made = converted(write_model("wide", tmp_path / "folder", torch.bfloat16), tmp_path, Type.Q4_0)
    expected, kept = logits(made, pool=pool), {"packed_weights_dir": str(tmp_path)}
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert torch.equal(logits(made, pool=pool, **kept), expected)
    assert "packed weights were read from" in caplog.text


def test_a_file_is_served_by_the_transformers_library_too(tmp_path):
    folder = write_model("llama", tmp_path / "folder", torch.bfloat16)
    made = converted(folder, tmp_path)
    assert torch.equal(logits(made, model_impl="transformers"), logits(folder, model_impl="transformers"))


@pytest.mark.parametrize("count", [40, pytest.param(2_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_a_file_that_is_mutated_after_its_conversion_loads_or_is_refused_in_one_line(count, tmp_path):
    folder = write_model("llama", tmp_path / "folder", torch.bfloat16)
    made = converted(folder, tmp_path, Type.Q4_0)
    file, rng = tmp_path / "model.gguf", random.Random(count)
    data = file.read_bytes()
    starts = [0, min(tensor.start for tensor in read_gguf(file).tensors.values()), len(data)]
    refusals, num_loaded = [], 0
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            part = rng.choice((0, 0, 0, 1))
            changed[rng.randrange(starts[part], starts[part + 1])] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        file.write_bytes(changed)
        try:
            ours(made)
        except ConfigError as refusal:
            refusals.append(str(refusal))
        else:
            num_loaded += 1
    assert not any("\n" in refusal for refusal in refusals)
    assert min(len(refusals), num_loaded) > count / 20


def test_blocks_that_are_not_finite_are_refused_by_name(tmp_path):
    folder = write_model("wide", tmp_path / "folder", torch.bfloat16)
    made = converted(folder, tmp_path, Type.Q8_0)
    file = tmp_path / "model.gguf"
    data = bytearray(file.read_bytes())
    start = read_gguf(file).tensors["blk.1.ffn_up.weight"].start
    data[start : start + 2] = b"\x00\x7c"  # the scale of the first block becomes infinite
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=r"tensor model.layers.1.mlp.up_proj.weight holds NaN or infinity"):
        ours(made)


def test_floats_that_are_not_finite_are_refused_by_name(tmp_path, pools):
    made = converted(write_model("llama", tmp_path / "folder", torch.float16), tmp_path)
    file = tmp_path / "model.gguf"
    data = bytearray(file.read_bytes())
    start = read_gguf(file).tensors["blk.1.attn_k.weight"].start
    data[start : start + 2] = b"\x00\x7c"
    file.write_bytes(data)
    for pool in pools:
        with pytest.raises(ConfigError, match=r"tensor model.layers.1.self_attn.\w+.weight holds NaN or infinity"):
            ours(made, pool=pool)
