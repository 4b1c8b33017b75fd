"""Tiny random models, written and run by transformers: the reference for our decoder."""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.layers.backend import Backend
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import load_model

from .dense_variants import DENSE_VARIANTS
from .expert_variants import EXPERT_VARIANTS
from .latent_variants import LATENT_VARIANTS
from .recurrent_variants import RECURRENT_VARIANTS
from .ungated_variants import UNGATED_VARIANTS
from .windowed_variants import WINDOWED_VARIANTS

SHARED_FOLDER = "PAGED_SERVE_TEST_CHECKPOINTS"  # a variable
SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CLASSES = {
    "GPT2": "GPT2LMHeadModel",
    "OpenAIGPT": "OpenAIGPTLMHeadModel",
    "Llama4Text": "Llama4ForCausalLM",
    "Qwen3_5Text": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeText": "Qwen3_5MoeForCausalLM",
}
CONFIGS = {
    "Gemma3": "Gemma3TextConfig",
    "Gemma3n": "Gemma3nTextConfig",
    "CohereCompass": "CohereCompassTextConfig",
    "Gemma4": "Gemma4TextConfig",
    "Gemma4Unified": "Gemma4UnifiedTextConfig",
    "Mllama": "MllamaTextConfig",
}
VARIANTS = (
    DENSE_VARIANTS | UNGATED_VARIANTS | WINDOWED_VARIANTS | EXPERT_VARIANTS | RECURRENT_VARIANTS | LATENT_VARIANTS
)
SEVERAL_KINDS = "gemma3n", "gemma4", "gemma4-keys-as-values"
CONTRACT_VARIANTS = (*RECURRENT_VARIANTS, *LATENT_VARIANTS, *EXPERT_VARIANTS, *SEVERAL_KINDS)


def reference(variant: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Write the variant's checkpoint in `dtype` to `folder`, and return transformers' float32 model of it."""
    made, model = _made(variant, dtype, ())
    shutil.copytree(made, folder, dirs_exist_ok=True)
    if model is not None and dtype == torch.float32:  # it would be read back from the file, a fifth of such a test
        return model
    return transformers_model(folder, attention=_attention(variant))


def write_checkpoint(
    variant: str, folder: Path, dtype: torch.dtype = torch.float32, fields: dict[str, Any] | None = None, **save: Any
) -> None:
    """Write the variant's checkpoint in `dtype` to `folder`: a copy, as each is made only once.

    `fields` replace those of the variant's configuration; tuples stand for lists.
    """
    made, _ = _made(variant, dtype, tuple((fields or {}).items()), **save)
    shutil.copytree(made, folder, dirs_exist_ok=True)


@cache
def _home() -> Path:
    """Where checkpoints are, until the run of pytest ends (conftest.py), or otherwise this process."""
    if shared := os.environ.get(SHARED_FOLDER):
        return Path(shared)
    own = tempfile.TemporaryDirectory(prefix="paged-serve-checkpoints-")
    atexit.register(own.cleanup)
    return Path(own.name)


def _made(variant: str, dtype: torch.dtype, fields: tuple[tuple[str, Any], ...], **save: Any) -> tuple[Path, Any]:
    """The checkpoint's folder; of the processes that share the home, the first that needs it makes it and gets the
    model, too. To the others it is None."""
    key = repr((variant, dtype, fields, sorted(save.items())))
    folder, model = _home() / hashlib.sha256(key.encode()).hexdigest(), None
    if not folder.exists():
        new = Path(tempfile.mkdtemp(dir=_home()))
        model = _make(new, variant, dtype, fields, **save)
        try:
            new.rename(folder)
        except OSError:
            if not folder.exists():  # another process was not faster
                raise
    return folder, model


def _make(folder: Path, variant: str, dtype: torch.dtype, fields: tuple[tuple[str, Any], ...], **save: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in fields}
        options = {**SHAPE, **VARIANTS[variant], **lists}
        family = options.pop("family")
        if family in (
            "GPT2",
            "OpenAIGPT",
            "GPTBigCode",
            "GPTJ",
            "CodeGen",
        ):  # otherwise its own names and the common names would contradict each other
            common = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
            ours = {name: options.pop(name) for name in (*common, "intermediate_size", "num_key_value_heads")}
            options = {"n_embd": ours["hidden_size"], "n_layer": 3, "n_head": 4, **options}
        if family == "GPTNeo":
            del options["num_key_value_heads"]
        if family == "Mpt":
            common = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
            ours = {name: options.pop(name) for name in (*common, "intermediate_size", "num_key_value_heads")}
            options = {"d_model": ours["hidden_size"], "n_layers": 3, "n_heads": 4, "max_seq_len": 512, **options}
        config = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(
            **options, attn_implementation=_attention(variant)
        )
        model = getattr(transformers, CLASSES.get(family, f"{family}ForCausalLM"))(config).eval()
        randomise(model)
        model.to(dtype).save_pretrained(folder, **save)
        return model


def _attention(variant: str) -> str:
    """The correct attention implementation of transformers: with "eager", Falcon adds ALiBi's bias twice."""
    return "sdpa" if variant.startswith("falcon-alibi") else "eager"


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> Any:
    """The folder's model in transformers; its rotary frequencies are float32, which a later `.to` would round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        (name,) = json.loads((folder / "config.json").read_text())["architectures"]  # the library's class, if it is one
        made = getattr(transformers, name, transformers.AutoModelForCausalLM)
        loaded = made.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
        return loaded.eval()


def randomise(model: Any) -> None:
    """Randomise all parameters so that each matters: norms are not 1, biases are not 0, and logits are far apart."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            own = name.replace("norm_attn_norm", "")  # of DBRX: attention with its norms
            if own.endswith(".weight") and ("norm" in own or ".ln_" in own):
                parameter.copy_(1 + 0.3 * noise)
            elif "embed" in name or ".wte." in name or ".wpe." in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * (0.3 if parameter.dim() == 1 else 1.6 / parameter.shape[1] ** 0.5))
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("layer_scalar"):
                buffer.copy_(0.7 + 0.6 * torch.rand(buffer.shape, generator=generator))


def reference_logits(model: Any, token_ids: list[int]) -> Tensor:
    """The logits [tokens, vocab] float32."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids])).logits[0].float()
    return logits


def reference_continues(model: Any, prompt: list[int], text: list[int]) -> bool:
    """Whether `text` is the model's greedy text after `prompt`: in one pass, instead of one for each token."""
    chosen = reference_logits(model, prompt + text).argmax(1)
    return bool((chosen[len(prompt) - 1 : -1] == torch.tensor(text)).all())


def reference_greedy(model: Any, token_ids: list[int], num_tokens: int) -> list[int]:
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.generation_config.eos_token_id = None
        output = model.generate(
            torch.tensor([token_ids]),
            attention_mask=torch.ones(1, len(token_ids), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
        )
    chosen: list[int] = output[0].tolist()[len(token_ids) :]
    return chosen


def ours(
    folder: Path,
    dtype: Any = "auto",
    group: TensorParallelGroup | None = None,
    pool: Pool | None = None,
    backend: Backend | None = None,
    **options: Any,
) -> Model:
    """Our model on torch row by row, on the kernels of `pool`, or on `backend`; `options` are fields of ModelConfig."""
    config = ModelConfig(dtype=dtype, device="cpu", **options)
    return load_model(str(folder), config, group or TensorParallelGroup(), lambda done, total: None, pool, backend)


def random_tokens(num_tokens: int, seed: int = 0, vocab_size: int = SHAPE["vocab_size"]) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, vocab_size, (num_tokens,), generator=generator).tolist()
    return tokens
