"""Writes the folder that is served: Hugging Face files, bf16, a plain Jinja chat template."""

from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    config = LlamaConfig.from_dict({**model.config.to_dict(), "dtype": "bfloat16"})
    served = LlamaForCausalLM(config).to(torch.bfloat16)
    served.load_state_dict({name: value.bfloat16() for name, value in model.state_dict().items()})
    served.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id, do_sample=False
    )
    served.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The weights of `folder` into `model`; ValueError when it was trained with other tokens."""
    if PreTrainedTokenizerFast.from_pretrained(folder).get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"{folder} has other tokens than this script makes now; train from scratch")
    served = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(served.state_dict())
