"""The Llama forward pass for training on a CPU: the mathematics of transformers with fewer operations."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

Weights = dict[str, Tensor]


def make_model(vocabulary: int, eos_ids: list[int], pad_id: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=eos_ids,
            pad_token_id=pad_id,
            rope_parameters={"rope_type": "default", "rope_theta": 500_000},
        )
    )


def rotary(length: int, config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [length, head_dim] bf16 each."""
    half = config.head_dim // 2
    frequency = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
    angle = torch.arange(length)[:, None] * frequency
    return torch.cat((angle.cos(),) * 2, 1).bfloat16(), torch.cat((angle.sin(),) * 2, 1).bfloat16()


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Plain products: faster than the fused CPU kernel for short rows and small heads."""
    rows, heads, length, width = q.shape
    q, k, v = (z.reshape(rows * heads, length, width) for z in (q, k, v))
    bias = bias.expand(rows, heads, length, length).reshape(rows * heads, length, length)
    return torch.baddbmm(bias, q, k.mT, alpha=width**-0.5).softmax(-1) @ v


def hidden_states(w: Weights, token_ids: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, config: LlamaConfig) -> Tensor:
    """Last hidden states, [rows, length, hidden]; `w` holds bf16 copies of the weights."""
    rows, length = token_ids.shape
    x = functional.embedding(token_ids, w["model.embed_tokens.weight"])
    groups = config.num_attention_heads // config.num_key_value_heads

    def rotated(v: Tensor) -> Tensor:
        half = config.head_dim // 2
        return v * cos + torch.cat((-v[..., half:], v[..., :half]), -1) * sin

    def heads(y: Tensor, name: str) -> Tensor:
        return functional.linear(y, w[name]).view(rows, length, -1, config.head_dim).transpose(1, 2)

    def norm(v: Tensor, name: str) -> Tensor:
        return functional.rms_norm(v, (config.hidden_size,), w[name], config.rms_norm_eps)

    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}."
        y = norm(x, layer + "input_layernorm.weight")
        q, k, v = (heads(y, f"{layer}self_attn.{name}_proj.weight") for name in "qkv")
        k, v = (z.repeat_interleave(groups, 1) for z in (rotated(k), v))
        out = attention(rotated(q), k, v, bias).view(rows, -1, length, config.head_dim).transpose(1, 2)
        x = x + functional.linear(out.reshape(rows, length, -1), w[layer + "self_attn.o_proj.weight"])
        y = norm(x, layer + "post_attention_layernorm.weight")
        gate, up = (functional.linear(y, w[f"{layer}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + functional.linear(functional.silu(gate) * up, w[layer + "mlp.down_proj.weight"])
    return norm(x, "model.norm.weight")


@torch.no_grad()
def start_by_looking_back(model: LlamaForCausalLM) -> None:
    """Starts four heads of the first layer as "look 1, 2 or 3 tokens back".

    Copying needs such heads, and training finds them late. Dimension 0 of every embedding is a constant; through it
    queries and keys are fixed vectors whose rotary product peaks at the distance.
    """
    config = model.config
    width, groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    angle = config.rope_parameters["rope_theta"] ** (-torch.arange(4) * 2 / width)
    model.model.embed_tokens.weight[:, 0] = 0.16
    layer = model.model.layers[0].self_attn
    for head, distance in enumerate((1, 2, 1, 3)):
        q = layer.q_proj.weight[head * width : (head + 1) * width]
        k = layer.k_proj.weight[head // groups * width : (head // groups + 1) * width]
        q.zero_()
        k.zero_()
        k[:4, 0] = 0.85
        q[:4, 0] = 0.85 * (angle * distance).cos()
        q[width // 2 : width // 2 + 4, 0] = -0.85 * (angle * distance).sin()
