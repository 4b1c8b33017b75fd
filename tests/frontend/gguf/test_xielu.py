"""GGUF files of Apertus have the parameters of its activation as metadata, which no architecture's name precedes."""

import pytest

from paged_serve.frontend.gguf.fields.config_fields import config_fields
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.block_formats import BLOCK_FORMATS
from paged_serve.protocol.gguf.container import GgufTensor

from .gguf_models import model_of

SIZES = {
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "block_count": 1,
    "attention.head_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
NUMBERS = {"xielu.alpha_p": [0.25], "xielu.alpha_n": [-0.5], "xielu.beta": [0.5]}


def fields_with(**changes):
    keys = {f"apertus.{key}": value for key, value in SIZES.items()} | NUMBERS | changes
    model, name = model_of(keys, "apertus"), "token_embd.weight"
    model.files[0].tensors[name] = GgufTensor(name, (280, 32), BLOCK_FORMATS[1], 0)
    return config_fields(model)


def test_each_layer_has_its_numbers_and_rotation_only_the_scaling_of_the_file():
    fields = fields_with()
    assert (fields["xielu_alpha_p"], fields["xielu_alpha_n"]) == ([0.25], [-0.5])
    assert fields["rope_scaling"] == {"rope_type": "default"}


def test_another_slope_at_0_is_refused():
    with pytest.raises(ConfigError, match=r"xielu\.beta=0\.4 is not supported; only 0\.5 is"):
        fields_with(**{"xielu.beta": [0.5, 0.4]})
