"""Checkpoints of BitNet multiply ternary weights with int8 activations, as the modules of transformers do."""

import itertools
import json
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.quantization.config_reader import read_quantization_config

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, reference_logits, transformers_model, write_checkpoint

PROMPT = random_tokens(60)
ONLINE = {"linear_class": "autobitlinear", "quantization_mode": "online"}
OFFLINE = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
FORMS = {"online": ONLINE, "offline": OFFLINE, "bitlinear": {}}


def is_projection(name):
    return "_proj" in name


def made_modules(model, form):
    """Replaces the projections of transformers' `model` by those of its quantizer; they hold random ternary weights."""
    with mock.patch("torch.compile", lambda function: function):  # compiled functions would need a compiler
        from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights

    tensors, how = {}, {"device": "cpu", "dtype": torch.float32, "bias": False}
    for name, module in [each for each in model.named_modules() if is_projection(each[0])]:
        sizes, weight = (module.in_features, module.out_features), module.weight.data
        if form == "online":
            new = AutoBitLinear(*sizes, online_quant=True, **how)
            new.weight.data = tensors[f"{name}.weight"] = weight
        else:
            scale = weight.abs().mean()
            codes, stored = (weight / scale).round().clamp(-1, 1), scale if form == "offline" else 1 / scale
            new = (AutoBitLinear if form == "offline" else BitLinear)(*sizes, **how)
            tensors[f"{name}.weight"] = pack_weights(codes.clone())
            tensors[f"{name}.weight_scale"] = new.weight_scale = stored.reshape(1)
            if form == "offline":
                new.weight.data = codes
            else:
                new.weight = tensors[f"{name}.weight"]
        model.set_submodule(name, new)
    return tensors


@pytest.fixture(scope="module", params=FORMS)
def made(request, tmp_path_factory):
    """A folder, and the logits of transformers: as they are, and with four scales of inputs that ranks can divide."""
    folder, form = tmp_path_factory.mktemp("bitnet"), request.param
    write_checkpoint("bitnet", folder, fields={"attention_bias": False})
    model, file = transformers_model(folder), folder / "model.safetensors"
    others = {name: tensor for name, tensor in load_file(file).items() if not is_projection(name)}
    save_file(others | made_modules(model, form), file, {"format": "pt"})
    write_settings(folder, FORMS[form])
    as_they_are = reference_logits(model, PROMPT)
    for name, module in model.named_modules():
        if name.endswith(("o_proj", "down_proj")):
            module.forward = in_parts(module.forward)
    return folder, as_they_are, reference_logits(model, PROMPT)


def in_parts(product):
    """The product of each quarter of the inputs, added: each has a scale of its own."""

    def added(x):
        ends = range(0, x.shape[-1] + 1, x.shape[-1] // 4)
        places = torch.arange(x.shape[-1])
        return sum(product(x * ((places >= a) & (places < b))) for a, b in itertools.pairwise(ends))

    return added


def write_settings(folder, settings):
    path = folder / "config.json"
    quantized = {"quantization_config": {"quant_method": "bitnet", **settings}}
    path.write_text(json.dumps(json.loads(path.read_text()) | quantized))


def test_logits_are_those_of_transformers_but_where_an_activation_is_rounded_to_its_neighbour(made, pools):
    """An activation next to the middle of two codes may become either. That changes the logits of few tokens."""
    folder, *expected_logits = made
    for pool in pools:
        loop, expected = PagedLoop(ours(folder, pool=pool)), expected_logits[pool is not None]
        found = loop.prefill(loop.row(PROMPT), chunk=24)
        errors = (found - expected).abs().amax(1) / expected.abs().max()
        assert errors.quantile(0.7) < 1e-4
        assert errors.max() < 0.03
        assert loop.model.quantization["quantization"] == "1 matrix float, 21 matrices int8"


def test_the_matrices_of_ranks_are_parts_of_those_of_one(made, tmp_path):
    folder, *_ = made
    loop = PagedLoop(ours(folder))
    whole = loop.prefill(loop.row(PROMPT))

    def on_rank(group):
        loop = PagedLoop(ours(folder, group=group))
        return loop.prefill(loop.row(PROMPT))

    for found in on_ranks(2, tmp_path / "rendezvous", on_rank):
        assert (found - whole).norm() < 0.05 * whole.norm()  # ranks round their own inputs


@pytest.mark.parametrize(
    ("listed", "num_floats"),  # of 21 projections and the output head
    [
        (["self_attn.o_proj", "model.layers.0", "lm_head"], 10),
        ([r"model.*mlp.(up|gate)_proj", "lm_head"], 7),
        (["model.layers.1.mlp.up"], 0),
    ],
)
def test_modules_that_are_not_converted_are_floats(listed, num_floats, tmp_path):
    write_checkpoint("bitnet", tmp_path, fields={"attention_bias": False})
    write_settings(tmp_path, ONLINE | {"modules_to_not_convert": listed})
    counts = f"{num_floats} matrices float, {22 - num_floats} matrices int8" if num_floats else "22 matrices int8"
    assert ours(tmp_path).quantization["quantization"] == counts


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"use_rms_norm": True}, "bitnet with use_rms_norm is not supported"),
        ({"quantization_mode": "online"}, "quantization_mode='online' of another linear_class than autobitlinear"),
        ({"linear_class": "other"}, "the settings of bitnet cannot be used: Invalid enum value 'other'"),
        (ONLINE | {"modules_to_not_convert": ["("]}, r"the expression 're:\('"),
    ],
)
def test_other_settings_are_refused_by_name(settings, reason, tmp_path):
    write_checkpoint("bitnet", tmp_path)
    write_settings(tmp_path, settings)
    with pytest.raises(ConfigError, match=reason):
        read_quantization_config(tmp_path)


def test_codes_that_are_not_ternary_are_refused(tmp_path):
    write_checkpoint("bitnet", tmp_path, fields={"attention_bias": False})
    write_settings(tmp_path, OFFLINE)
    file, name = tmp_path / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    packed = {name: torch.full((24, 64), 3, dtype=torch.uint8), f"{name}_scale": torch.ones(1)}
    save_file(load_file(file) | packed, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"up_proj\.weight holds codes that are not ternary"):
        ours(tmp_path)
