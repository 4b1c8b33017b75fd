"""What the model's generation_config.json recommends where a request names nothing: one answer for HTTP and LLM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.sampling_params import SamplingParams

from .text.tokenizer import read_json

FILE = "generation_config.json"
_SAME_NAME = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(model: ModelConfig) -> Mapping[str, Any]:
    """Fields of SamplingParams; empty with --generation-config none. Raises ConfigError for a value out of bounds.

    As in vLLM, `do_sample` is not looked at: without a temperature the API's own default holds.
    """
    if model.generation_config != "auto":
        return {}
    path = Path(model.model) / FILE
    recommended = read_json(path)
    names = {**{name: name for name in _SAME_NAME}, "max_new_tokens": "max_tokens"}
    values = {ours: recommended[theirs] for theirs, ours in names.items() if recommended.get(theirs) is not None}
    try:
        SamplingParams(**values)
    except InvalidRequest as error:
        raise ConfigError(
            f"{path}: {error.message}. --generation-config none serves without the file's values"
        ) from None
    return values
