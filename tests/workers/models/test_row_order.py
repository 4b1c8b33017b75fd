"""Heads whose layout in the file differs from that of kernels: in every format, on every rank, from packed weights."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.workers.geometry.rope_scaling import RopeScaling
from paged_serve.workers.layers.rotary import Rotary, rotate
from paged_serve.workers.models import registry
from paged_serve.workers.models.families.qwen3 import QWEN3
from paged_serve.workers.models.matrix_rows import order_of_head, query_key_value_rows
from paged_serve.workers.models.registry import read_geometry

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, reference, reference_logits, write_checkpoint
from ..tiny_models.quantized_checkpoints import FORMATS, W8A8, write_quantized

PROMPT = random_tokens(60)


def logits(folder, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT), chunk=48)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (16, 4), (22, 12), (80, 32)])
def test_rotation_in_our_order_equals_rotation_in_the_order_of_the_file(interleaved, head_dim, rotary_dim, tmp_path):
    rope = RopeScaling("yarn", 1000.0, 4.0, 64, rotary_dim=rotary_dim)
    shape = shape_of(tmp_path, head_dim=head_dim, ropes=(RopeScaling("none"), rope), interleaved=interleaved)
    order = order_of_head(shape, 1)
    assert order_of_head(shape, 0).equal(order)  # of a layer that does not rotate: that of the first one which does
    assert order.sort().values.equal(torch.arange(head_dim))
    x = torch.randn(30, 2, head_dim, generator=torch.Generator().manual_seed(1))
    cosine, sine = Rotary(rope, head_dim).table(30)[:30].unsqueeze(1).chunk(2, dim=-1)
    rotated = x.clone()
    pairs = rotary_dim // 2
    one = slice(0, rotary_dim, 2) if interleaved else slice(0, pairs)
    other = slice(1, rotary_dim, 2) if interleaved else slice(pairs, rotary_dim)
    rotated[..., one] = x[..., one] * cosine[..., :pairs] - x[..., other] * sine[..., :pairs]
    rotated[..., other] = x[..., other] * cosine[..., :pairs] + x[..., one] * sine[..., :pairs]
    found = rotate(x[..., order], cosine, sine)
    assert torch.equal(found, rotated[..., order]), "elements that are not rotated have other bits"


def shape_of(folder, **changes):
    """A geometry with changed fields."""
    (folder / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, '
        '"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 9, "max_position_embeddings": 64}'
    )
    return replace(read_geometry(folder)[1], **changes)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["apart", "stacked", "grouped"])
def test_ranks_take_the_rows_of_their_heads_from_every_layout(layout, interleaved, tmp_path):
    """Six query heads share two KV heads; each row of the file contains its own number."""
    head_dim, rope = 4, RopeScaling("default", rotary_dim=2)
    shape = shape_of(tmp_path, head_dim=head_dim, ropes=(rope,), interleaved=interleaved)
    query, key, value = (
        torch.arange(count * head_dim).view(count, head_dim) + at for count, at in ((6, 0), (2, 100), (2, 200))
    )
    names = ("q", "k", "v") if layout == "apart" else ("qkv",) * 3
    files = {"q": query, "k": key, "v": value, "qkv": torch.cat([query, key, value])}
    if layout == "grouped":
        grouped = [torch.cat([query[3 * at : 3 * at + 3], key[at : at + 1], value[at : at + 1]]) for at in range(2)]
        files["qkv"] = torch.cat(grouped)
    order = order_of_head(shape, 0)
    for queries, keys in [((0, 6), (0, 2)), ((0, 3), (0, 1)), ((3, 6), (1, 2)), ((4, 5), (1, 2))]:
        parts = query_key_value_rows(names, shape, queries, keys, 0, are_grouped=layout == "grouped")
        assert [part.total for part in parts] == [files[part.name].numel() for part in parts]
        read = [files[part.name].flatten()[slice(*part.span)] for part in parts]
        found = torch.cat(
            [rows if part.order is None else rows[part.order] for rows, part in zip(read, parts, strict=True)]
        )
        ours = (query[slice(*queries)][:, order], key[slice(*keys)][:, order], value[slice(*keys)])
        assert torch.equal(found, torch.cat([part.flatten() for part in ours]))
        assert len(found) == sum(map(len, parts))


FAST = ("ct-w4a16", "gptq-desc-act", "awq")
MARKED = [pytest.param(name, marks=() if name in FAST else pytest.mark.nightly) for name in FORMATS]


@pytest.mark.parametrize("name", MARKED)
def test_quantized_rows_are_reordered_like_those_of_floats(name, tmp_path):
    write_checkpoint("glm", tmp_path / "source")
    write_quantized(tmp_path / "source", tmp_path / "quantized", name)
    found, expected = (logits(tmp_path / each, dtype="float32") for each in ("quantized", "quantized-float"))
    if name in W8A8:  # activations are rounded, too; with a wrong order the difference would exceed the result
        assert (found - expected).norm() < 0.2 * expected.norm()
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("variant", ["falcon-two-norms", "phi"])
@pytest.mark.parametrize("kind", ["auto", "int8"])
def test_packed_weights_are_kept_in_our_order(variant, kind, tmp_path, make_pool, caplog):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    write_checkpoint(variant, tmp_path / "model")
    expected = logits(tmp_path / "model", pool=pool, quantization=kind)
    for times_read in range(2):
        kept = {"packed_weights_dir": str(tmp_path / "kept")}
        with caplog.at_level("INFO"):
            assert torch.equal(logits(tmp_path / "model", pool=pool, quantization=kind, **kept), expected)
        assert caplog.text.count("packed weights were read") == times_read


def test_norms_of_heads_follow_the_order_of_their_elements(tmp_path, monkeypatch, pools):
    """No published model has both: a Qwen3 file is rewritten as if its rotary pairs were adjacent elements."""
    write_checkpoint("qwen3", tmp_path)
    expected = [logits(tmp_path, pool=pool) for pool in pools]
    shape = replace(read_geometry(tmp_path)[1], interleaved=True)
    place = order_of_head(shape, 0).argsort()
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")):
            heads = tensor.unflatten(0, (-1, shape.head_dim))
            tensors[name] = heads[:, place].flatten(0, 1).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(registry, "FAMILIES", (replace(QWEN3, interleaved=True),))
    for pool, before in zip(pools, expected, strict=True):
        assert torch.equal(logits(tmp_path, pool=pool), before)


def test_ranks_share_quantized_rows_in_our_order(tmp_path, make_pool):
    pools = [make_pool() for _ in range(2)]
    if pools[0] is None:
        pytest.skip("the kernels are not built")
    write_checkpoint("falcon-two-norms", tmp_path)
    expected = logits(tmp_path, pool=pools[0], quantization="int8", dtype="bfloat16")

    def work(group):
        return logits(tmp_path, group=group, pool=pools[group.rank], quantization="int8", dtype="bfloat16")

    for found in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("served", "length"), [(128, 120), (None, 150)])
def test_longrope_has_one_table_for_all_requests_by_the_supported_length(served, length, tmp_path, pools):
    expected = reference_logits(reference("phi3-longrope", tmp_path), random_tokens(length))
    short = random_tokens(length)[:30]
    for pool in pools:
        loop = PagedLoop(ours(tmp_path, pool=pool, max_model_len=served))
        found = loop.prefill(loop.row(random_tokens(length)), chunk=50)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
        assert torch.equal(loop.prefill(loop.row(short)), found[:30]), "a request's bits depend on its later tokens"
