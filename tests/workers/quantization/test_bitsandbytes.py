"""Checkpoints of bitsandbytes are the float model of their codes.

The packers below lay tensors out as bitsandbytes 0.50.2 and transformers do; the reader was compared once with their
files, bit for bit, for nf4 with codes for scales, fp4 and int8.
"""

import json

import pytest
import torch

from paged_serve.protocol.errors import ConfigError

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.quantized_checkpoints import Format, edit, write_quantized

PROMPT = random_tokens(24)
BLOCK, NESTED_BLOCK = 64, 256


def four_bits(kind: str, *, nested: bool) -> Format:
    numbers = torch.linspace(-1, 1, 16) ** 3

    def pack(weight):
        blocks = weight.reshape(-1, BLOCK)
        scales = blocks.abs().amax(1)
        state = {"quant_type": kind, "blocksize": BLOCK, "dtype": "bfloat16", "shape": list(weight.shape)}
        tensors = {"weight.absmax": scales}
        if nested:
            tensors, scales = packed_scales(scales)
            state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": OFFSET}
        codes = (blocks / scales[:, None])[..., None].sub(numbers).abs().argmin(-1).to(torch.uint8).reshape(-1, 2)
        text = json.dumps(state).encode()
        tensors |= {
            "weight": codes[:, :1] << 4 | codes[:, 1:],
            "weight.quant_map": numbers.clone(),
            f"weight.quant_state.bitsandbytes__{kind}": torch.frombuffer(bytearray(text), dtype=torch.uint8),
        }
        return tensors, (numbers[codes.int()].reshape(blocks.shape) * scales[:, None]).reshape(weight.shape)

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return Format(pack, config, ignored=("o_proj",))


OFFSET = 0.125


def packed_scales(scales):
    """The tensors of scales as codes, and what the codes stand for."""
    table, outer = torch.linspace(-1, 1, 256), torch.empty(-(-len(scales) // NESTED_BLOCK))
    for at in range(len(outer)):
        outer[at] = (scales[at * NESTED_BLOCK :][:NESTED_BLOCK] - OFFSET).abs().max()
    each = outer.repeat_interleave(NESTED_BLOCK)[: len(scales)]
    codes = ((scales - OFFSET) / each)[:, None].sub(table).abs().argmin(-1)
    tensors = {"absmax": codes.to(torch.uint8), "nested_absmax": outer, "nested_quant_map": table}
    return {f"weight.{name}": tensor for name, tensor in tensors.items()}, table[codes] * each + OFFSET


def eight_bits() -> Format:
    def pack(weight):
        peaks = weight.abs().amax(1)
        codes = (weight / peaks[:, None] * 127).round().to(torch.int8)
        tensors = {"weight": codes, "SCB": peaks, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return tensors, codes.float() * (peaks / 127)[:, None]

    return Format(pack, {"quant_method": "bitsandbytes", "load_in_8bit": True}, ignored=("o_proj",))


FORMS = {
    "nf4": four_bits("nf4", nested=False),
    "nf4-nested": four_bits("nf4", nested=True),
    "fp4": four_bits("fp4", nested=False),
    "int8": eight_bits(),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("bitsandbytes")
    write_checkpoint("llama", home / "model", torch.bfloat16)
    for name, form in FORMS.items():
        write_quantized(home / "model", home / name, form)
    return home


def logits(folder, **options):
    loop = PagedLoop(ours(folder, "bfloat16", **options))
    return loop.prefill(loop.row(PROMPT))


@pytest.mark.parametrize("name", FORMS)
def test_the_model_is_the_float_model_of_its_codes(name, folders, pools):
    for pool in pools:
        for options in ({}, {"quantization": "bitsandbytes"}, {"quantization": "int8"}):
            floats = {} if "bitsandbytes" in options.values() else options
            expected = logits(folders / f"{name}-float", pool=pool, **floats)
            assert torch.equal(logits(folders / name, pool=pool, **options), expected)
        facts = ours(folders / name, "bfloat16", pool=pool).quantization["quantization"]
        assert f"matrices bitsandbytes {name.partition('-')[0]} held as float" in facts


def test_the_first_files_have_no_name_of_the_method(folders, tmp_path):
    folder = changed(folders, tmp_path, "int8", {"quant_method": None, "load_in_8bit": True})
    assert torch.equal(logits(folder), logits(folders / "int8-float"))


@pytest.mark.parametrize("name", ["nf4-nested", "int8"])
@pytest.mark.parametrize("model", ["llama", "mixtral"])
def test_ranks_read_their_shares(name, model, make_pool, tmp_path):
    write_checkpoint(model, tmp_path / "model", torch.bfloat16)
    write_quantized(tmp_path / "model", tmp_path / name, FORMS[name])
    alone, *pools = [make_pool() or pytest.skip("the kernels are not built") for _ in range(3)]
    expected = logits(tmp_path / name, pool=alone)

    def on_rank(group):
        return logits(tmp_path / name, group=group, pool=pools[group.rank])

    for found in on_ranks(2, tmp_path / "rendezvous", on_rank):
        assert torch.equal(found, expected)


def changed(folders, tmp_path, name, config=None, **tensors):
    write_checkpoint("llama", tmp_path / "model", torch.bfloat16)
    write_quantized(tmp_path / "model", tmp_path / name, FORMS[name])
    edit(tmp_path / name, config, **tensors)
    return tmp_path / name


@pytest.mark.parametrize(
    ("name", "config", "tensors", "reason"),
    [
        ("nf4", {"bnb_4bit_quant_storage": "bfloat16"}, {}, "bnb_4bit_quant_storage='bfloat16' is not supported"),
        ("nf4", None, {"nf4": lambda state: state[:-2]}, "bitsandbytes__nf4 cannot be used"),
        ("nf4", None, {"weight__quant_map": lambda _: None}, "no tensor .*weight.quant_map"),
        ("nf4-nested", None, {"weight__absmax": lambda codes: codes[1:]}, r"weight.absmax has shape"),
        ("int8", None, {"SCB": lambda scales: scales[1:]}, r"SCB has shape"),
        ("int8", None, {"weight_format": lambda order: order + 1}, "weight_format is 1; only 0"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(name, config, tensors, reason, folders, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        logits(changed(folders, tmp_path, name, config, **tensors))
