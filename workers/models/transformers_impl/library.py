"""The interface to the transformers library; this is the only file that imports it."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._meta_registrations  # a worker's start leaves it out
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file

from .checks.probe import window_mask_of
from .modules import GivenHidden
from .paged_attention import attend

LIBRARY: Any = transformers  # its functions have no types
NAME = "paged_serve"  # of our attention function, in a config
PROBE = "paged_serve_probe"  # the same function, while masks are described
BUILDING = threading.Lock()  # the library changes torch's default dtype while it builds a model
NO_INTERFACE = "its class does not call the attention interface of transformers"
NOT_READ = (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError, OSError, ImportError)


class _Fields(msgspec.Struct, frozen=True):
    auto_map: dict[str, Any] | None = None


class EmptyOnMeta(TorchFunctionMode):
    """In its context torch.empty allocates no memory: weights have none until they are read; computed tensors have."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def read_config(folder: Path, architectures: Sequence[str], *, trusts_code: bool) -> Any:
    """The config object of a decoder. Raises ConfigError if the library lacks the decoder or may not run its code."""
    LIBRARY.logging.set_verbosity_error()
    own = set(architectures) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    code = (read_json_file(folder / "config.json", _Fields).auto_map or {}).get("AutoModelForCausalLM")
    if not own and not code:
        raise ConfigError(f"transformers {transformers.__version__} has no such decoder")
    if not own and not trusts_code:
        raise ConfigError(
            f"its code comes with the model ({code}) and is not part of transformers; read it, then use "
            "--trust-remote-code to run it"
        )
    try:
        return LIBRARY.AutoConfig.from_pretrained(folder, trust_remote_code=trusts_code, local_files_only=True)
    except NOT_READ as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read by transformers: {first_line(error)}") from error


def build(config: Any, architectures: Sequence[str], dtype: torch.dtype, *, trusts_code: bool) -> tuple[Any, nn.Module]:
    """The model without weights, and the part of it before the output head. Its class is one of `architectures`."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_ATTENTION_FUNCTIONS.register(PROBE, attend)
    config.use_cache = False
    try:
        with BUILDING, EmptyOnMeta():
            model = LIBRARY.AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=NAME, trust_remote_code=trusts_code
            )
    except NOT_READ as error:
        if NAME in str(error):
            raise ConfigError(NO_INTERFACE) from error
        raise ConfigError(f"transformers cannot build it: {first_line(error)}") from error
    if type(model).__name__ not in architectures:
        raise ConfigError(f"config.json: model_type={config.model_type} is that of a {type(model).__name__}")
    base = getattr(model, model.base_model_prefix, None)
    if not isinstance(base, nn.Module) or not isinstance(model.get_output_embeddings(), nn.Linear):
        raise ConfigError("it has no base model with an output head, which --model-impl transformers needs")
    if not getattr(model, "_supports_attention_backend", False):
        raise ConfigError(NO_INTERFACE)
    model.requires_grad_(False)
    return model.eval(), base


def describe_masks(config: Any, num_positions: int) -> None:
    """From now on the library's masks are descriptions, for a Probe."""
    ALL_MASK_ATTENTION_FUNCTIONS.register(PROBE, window_mask_of(num_positions))
    config._attn_implementation = PROBE


def omit_masks(config: Any) -> None:
    """From now on the library builds no masks: our attention options determine the keys that a token attends to."""
    config._attn_implementation = NAME


def scorer_of(model: Any) -> Any:
    """`model` with hidden states as its inputs: the output head, and the library's changes of its logits."""
    setattr(model, model.base_model_prefix, GivenHidden(BaseModelOutputWithPast))
    return model


def scores(scorer: Any, hidden: Tensor) -> Tensor:
    """[n, hidden] -> [n, vocab]."""
    found: Tensor = scorer(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits[0]
    return found


def version() -> str:
    return str(transformers.__version__)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
