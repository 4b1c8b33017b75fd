"""A checkpoint that is damaged, contradicts itself or does not match its config.json is refused with an exact error."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.torch.backend import SingleRowsBackend, TorchBackend
from paged_serve.workers.checkpoint.safetensors_files import Checkpoint, read_header
from paged_serve.workers.checkpoint.weight_files import weight_files

from ..tiny_models.checkpoints import ours
from ..tiny_models.quantized_checkpoints import write_quantized
from ..tiny_models.tiny_model import write_tiny_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    write_tiny_model(tmp_path)
    return tmp_path


def rewrite(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_a_truncated_file_is_named_with_both_sizes(folder):
    path = folder / WEIGHTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    data_bytes = len(whole) - 8 - struct.unpack("<Q", whole[:8])[0]
    with pytest.raises(ConfigError, match=rf"{WEIGHTS} is damaged: .* take {data_bytes} .* has {data_bytes - 100}"):
        ours(folder)


@pytest.mark.parametrize("content", [b"", b"abc", struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 50) + b"{}"])
def test_a_header_longer_than_its_file_is_refused_unread(folder, content):
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(ConfigError, match=f"not a complete safetensors file.*has {len(content)}"):
        ours(folder)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}, "takes 16 bytes, but has 8 in the header"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "is at bytes 4 to 12, but must start at 0"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "is at bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "is at bytes 8 to 0"),
        ({"dtype": "F32", "shape": "x", "data_offsets": [0, 8]}, "damaged header"),
        ({"dtype": "F32"}, "damaged header"),
    ],
)
def test_a_header_that_contradicts_its_file_is_refused(tmp_path, entry, complaint):
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": entry}).encode()
    (tmp_path / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(ConfigError, match=complaint):
        read_header(tmp_path / WEIGHTS)


def test_random_damage_to_a_header_never_gives_another_error(folder):
    whole = bytearray((folder / WEIGHTS).read_bytes())
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        damaged = bytearray(whole)
        place, byte = torch.randint(0, 2**31, (2,), generator=generator).tolist()
        damaged[place % 600] = byte % 256
        (folder / WEIGHTS).write_bytes(damaged)
        try:
            ours(folder)
        except ConfigError:
            continue


def test_a_missing_tensor_is_named(folder):
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ConfigError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        ours(folder)


def test_an_unexpected_tensor_is_named(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    with pytest.raises(ConfigError, match=r"does not explain: model\.layers\.0\.self_attn\.q_proj\.bias"):
        ours(folder)


def test_a_tensor_of_another_shape_is_named_with_both(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(65)}))
    with pytest.raises(ConfigError, match=r"model\.norm\.weight has shape \[65\], but config\.json asks for \[64\]"):
        ours(folder)


def test_rotary_buffers_of_old_files_are_ignored(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    ours(folder)


@pytest.mark.parametrize("quantization", ["auto", "int8", "int4"])
@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"],
)
def test_a_number_beyond_the_dtypes_range_is_refused_by_the_tensors_name(folder, name, quantization):
    def enlarge(tensors):
        tensors[name].view(-1)[5] = -70000.0

    rewrite(folder, enlarge)
    if quantization == "auto" or "norm" in name or "embed" in name:
        complaint = rf"^tensor {name} holds 70144, beyond the range of float16, 65504 .*; use --dtype bfloat16$"
        with pytest.raises(ConfigError, match=complaint):
            ours(folder, "float16", quantization=quantization)
    else:
        ours(folder, "float16", quantization=quantization)  # codes hold it
    ours(folder, quantization=quantization)


@pytest.fixture(params=["kernels", "torch", "torch row by row"])
def computes(request, make_pool):
    """Arguments of `ours`: the backend that computes, and so the code that checks the weights."""
    if request.param != "kernels":
        return {"backend": TorchBackend() if request.param == "torch" else SingleRowsBackend()}
    if (pool := make_pool(2)) is None:
        pytest.skip("the kernels are not built")
    return {"pool": pool}


@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "name",
    ["model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"],
)
def test_nan_and_infinity_of_the_file_are_refused_by_the_tensors_name(folder, computes, name, value, dtype):
    """This includes the last number of a tensor, and tensors that are joined with others."""
    rewrite(folder, lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    complaint = rf"^tensor {name} holds NaN or infinity \(1 such numbers of \d+\): the checkpoint is damaged"
    with pytest.raises(ConfigError, match=complaint):
        ours(folder, dtype, **computes)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("name", ["model.layers.0.self_attn.o_proj", "model.layers.1.mlp.down_proj", "lm_head"])
def test_nan_and_infinity_of_a_matrix_quantized_on_load_are_refused(folder, computes, name, quantization):
    rewrite(folder, lambda tensors: tensors[f"{name}.weight"][7, 9:10].fill_(torch.nan))
    with pytest.raises(ConfigError, match=f"^tensor {name}.weight holds NaN or infinity"):
        ours(folder, quantization=quantization, **computes)


@pytest.mark.parametrize("kind", ["ct-w8a8", "gptq"])
def test_nan_and_infinity_of_scales_are_refused(folder, tmp_path, computes, kind):
    quantized, value = tmp_path / "quantized", "model.layers.0.self_attn.v_proj"
    write_quantized(folder, quantized, kind)
    (name,) = [name for name in load_file(quantized / WEIGHTS) if name.startswith(value) and "scale" in name]
    rewrite(quantized, lambda tensors: tensors[name].view(-1)[-1:].fill_(torch.inf))
    with pytest.raises(ConfigError, match=f"^tensor {value}.* holds NaN or infinity"):
        ours(quantized, **computes)


def test_the_largest_numbers_that_round_into_the_range_are_accepted(folder):
    def enlarge(tensors):
        tensors["lm_head.weight"] = tensors["lm_head.weight"].float()
        tensors["lm_head.weight"].view(-1)[0] = 65519.0  # 65520 would be infinity

    rewrite(folder, enlarge)
    ours(folder, "float16")


def test_a_link_to_a_file_that_is_gone_is_refused_if_its_weights_are_needed(folder):
    (folder / "more.safetensors").symlink_to(folder / "gone")
    assert weight_files(folder) == [folder / WEIGHTS]
    Checkpoint(folder)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(folder / "gone")
    assert weight_files(folder) == []
    with pytest.raises(ConfigError, match=rf"{WEIGHTS} is a link to a file that is gone; download the model again"):
        Checkpoint(folder)


def test_an_index_that_names_an_absent_or_foreign_file_is_refused(folder):
    index = folder / f"{WEIGHTS}.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "model-1.safetensors"}}))
    with pytest.raises(ConfigError, match=r"lacks model-1\.safetensors"):
        Checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "m" * 300}}))
    with pytest.raises(ConfigError, match=r"lacks m+, which its index names"):
        Checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../other/model.safetensors"}}))
    with pytest.raises(ConfigError, match="outside the folder"):
        Checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"a.weight": WEIGHTS}}))
    with pytest.raises(ConfigError, match=r"lacks a\.weight, which it holds according to the index"):
        Checkpoint(folder)


@pytest.mark.parametrize("names", [("1", "2"), ("2", "1")])
def test_a_tensor_is_read_from_the_shard_that_the_index_names(names, tmp_path):
    for number in (1, 2):  # a shard may have tensors left of another division
        tensors = {name: torch.tensor([float(number)]) for name in "12"}
        save_file(tensors, tmp_path / f"model-{number}.safetensors")
    weight_map = {name: f"model-{name}.safetensors" for name in names}
    (tmp_path / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = Checkpoint(tmp_path)
    assert [checkpoint.read(name, (1,)).item() for name in "12"] == [1, 2]


def test_a_folder_without_weights_is_named(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        ours(folder)


def test_progress_counts_bytes_up_to_the_total(folder):
    from paged_serve.protocol.messages.config import ModelConfig
    from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
    from paged_serve.workers.models.loading import load_model

    calls = []
    model = load_model(str(folder), ModelConfig(), TensorParallelGroup(), lambda *call: calls.append(call))
    done = [loaded for loaded, _ in calls]
    assert done == sorted(done)
    assert calls[-1] == (model.weights_bytes, model.weights_bytes)


def test_a_second_copy_of_mistrals_weights_is_not_read(folder):
    (folder / "consolidated.safetensors").write_bytes(bytes(100))
    assert weight_files(folder) == [folder / WEIGHTS]


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (["pytorch_model.bin"], r"weights in pytorch_model\.bin are pickled; convert them"),
        (["gptq_model-4bit-128g.safetensors"], rf"rename gptq_model-4bit-128g\.safetensors to {WEIGHTS}"),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "download the index"),
        (["consolidated.safetensors"], "only the copy in transformers' format is read"),
        ([], "download the model again"),
    ],
)
def test_weights_under_other_names_are_refused_with_a_remedy(names, remedy, folder):
    (folder / WEIGHTS).unlink()
    for name in names:
        (folder / name).touch()
    with pytest.raises(ConfigError, match=rf"neither {WEIGHTS} nor {WEIGHTS}\.index\.json.*{remedy}"):
        ours(folder)
