"""A made Qwen3-MoE with random weights, as a model folder and as a GGUF file of the same weights, for benchmarks."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

MAX_LEN, ROPE_THETA, NORM_EPS = 4096, 10000.0, 1e-6
NUM_BYTES = 256  # tokens of single bytes, which llama.cpp looks for


@dataclass(frozen=True)
class Shape:
    """The sizes of the model; the defaults have 400 M parameters a layer, of which a token uses 50 M in experts."""

    layers: int = 4
    hidden: int = 2048
    width: int = 1024  # of an expert
    experts: int = 64
    top_k: int = 8
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 32000

    @property
    def expert_weights(self) -> int:
        """The number of weights of all experts."""
        return self.layers * self.experts * 3 * self.hidden * self.width

    @property
    def other_weights(self) -> int:
        """Those that every step reads: attention, routers and the output head."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + self.experts * self.hidden) + self.vocab * self.hidden

    def weights_of_step(self, batch: int) -> float:
        """The weights that a step of `batch` rows reads; of experts the average number."""
        return self.other_weights + self.expert_weights * (1 - (1 - self.top_k / self.experts) ** batch)


def shape_of(changes: Sequence[str]) -> Shape:
    """The default shape with changes such as "layers=2"."""
    return replace(Shape(), **{name: int(value) for name, _, value in (change.partition("=") for change in changes)})


def config_of(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.width,
        "moe_intermediate_size": shape.width,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": MAX_LEN,
        "rope_theta": ROPE_THETA,
        "rms_norm_eps": NORM_EPS,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def tensors_of(shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """The tensors in bfloat16 by their names in a model folder, but experts are stacked: [experts, outputs, inputs]."""
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(sizes, generator=generator) * (scale / sizes[-1] ** 0.5)).bfloat16()

    yield "model.embed_tokens.weight", random(shape.vocab, shape.hidden)
    yield "model.norm.weight", torch.ones(shape.hidden).bfloat16()
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{name}.weight", torch.ones(shape.hidden).bfloat16()
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            yield f"{at}.self_attn.{name}_proj.weight", random(heads * shape.head_dim, shape.hidden)
        yield f"{at}.self_attn.o_proj.weight", random(shape.hidden, shape.heads * shape.head_dim)
        for name in ("q_norm", "k_norm"):
            yield f"{at}.self_attn.{name}.weight", torch.ones(shape.head_dim).bfloat16()
        yield f"{at}.mlp.gate.weight", random(shape.experts, shape.hidden, scale=3.0)
        for name in ("gate", "up"):
            yield f"{at}.mlp.experts.{name}_proj", random(shape.experts, shape.width, shape.hidden)
        yield f"{at}.mlp.experts.down_proj", random(shape.experts, shape.hidden, shape.width)


FP8_BLOCK, LARGEST_FP8 = 128, 448.0
FP8_CONFIGS: dict[str, dict[str, Any]] = {
    "fp8-blocks": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
    },
    "fp8-outputs": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
            }
        },
    },
}


def as_fp8(name: str, matrix: Tensor, form: str) -> dict[str, Tensor]:
    """The tensors of a projection `name` in e4m3, with a scale for each block or each output."""
    rows, columns = (FP8_BLOCK, FP8_BLOCK) if form == "fp8-blocks" else (1, matrix.shape[1])
    tiles = matrix.float().view(matrix.shape[0] // rows, rows, matrix.shape[1] // columns, columns)
    scales = tiles.abs().amax((1, 3), keepdim=True) / LARGEST_FP8
    codes = (tiles / scales).to(torch.float8_e4m3fn).view(matrix.shape)
    ending = "weight_scale_inv" if form == "fp8-blocks" else "weight_scale"
    return {f"{name}.weight": codes, f"{name}.{ending}": scales[:, 0, :, 0].contiguous()}


def write_folder(folder: Path, shape: Shape, form: str = "") -> None:
    """Write config.json and model.safetensors, with a tensor for each expert's projection, as vLLM reads them.

    Projections are in the `form` of FP8_CONFIGS if one is given.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in tensors_of(shape):
        layer, is_stacked, projection = name.partition(".mlp.experts.")
        names = [f"{layer}.mlp.experts.{expert}.{projection}.weight" for expert in range(shape.experts)]
        for each, matrix in zip(names, tensor, strict=True) if is_stacked else [(name, tensor)]:
            if form and each.endswith("_proj.weight"):
                tensors |= as_fp8(each.removesuffix(".weight"), matrix, form)
            else:
                tensors[each] = matrix.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = config_of(shape) | ({"quantization_config": FP8_CONFIGS[form]} if form else {})
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE({name: token for token, name in enumerate(token_names(shape.vocab))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}


def gguf_name(name: str) -> str:
    plain = name.removesuffix(".weight")
    if plain in GGUF_NAMES:
        return f"{GGUF_NAMES[plain]}.weight"
    layer, _, rest = plain.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{GGUF_NAMES[rest]}.weight"


def write_gguf(path: Path, shape: Shape) -> None:
    """Write the same weights as a GGUF file of llama.cpp's architecture qwen3moe: norms and routers as float32."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(shape.layers)
    writer.add_context_length(MAX_LEN)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.width)
    writer.add_expert_feed_forward_length(shape.width)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.top_k)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    _add_tokens(writer, shape.vocab)
    for name, tensor in tensors_of(shape):
        if tensor.dim() == 1 or name.endswith("mlp.gate.weight"):
            writer.add_tensor(gguf_name(name), tensor.float().numpy())
        else:
            words = tensor.view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(gguf_name(name), words, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: Any, vocab: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(token_names(vocab))
    writer.add_token_types([1] * vocab)  # normal ones
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(vocab - 1)


def token_names(vocab: int) -> list[str]:
    """A vocabulary of bytes, in the letters of GPT-2, and of tokens that no text has."""
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(NUM_BYTES) if byte not in letters]
    of_byte = {byte: chr(byte) for byte in letters} | {byte: chr(NUM_BYTES + i) for i, byte in enumerate(others)}
    return [of_byte[byte] for byte in range(NUM_BYTES)] + [f"<{token}>" for token in range(NUM_BYTES, vocab)]
