"""EAGLE-3 by its definition: a target and a head in float32, of whole texts, without a cache."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional

from ...tiny_models.made_eagle3 import LAYERS
from ...tiny_models.tiny_model import HEAD_DIM, HEADS

TAPPED = (2, 4, 5)  # of 8 layers


class Reference:
    """The target and the head in float32, of whole texts, without a cache."""

    def __init__(self, target, head, *, normalises_residual=False):
        self.target = {name: tensor.float() for name, tensor in load_file(Path(target) / "model.safetensors").items()}
        self.head = load_file(Path(head) / "model.safetensors")
        self.weights = {name: tensor.float() for name, tensor in self.head.items()}
        self.normalises_residual = normalises_residual

    def tapped(self, tokens):
        """[tokens, 3 * hidden]."""
        hidden, inputs = self.target["model.embed_tokens.weight"][tokens], []
        for layer in range(LAYERS):
            inputs.append(hidden)
            at = f"model.layers.{layer}."
            hidden = layer_of(self.target, at, normed(hidden, self.target[f"{at}input_layernorm.weight"]), hidden)
        return torch.cat([inputs[layer] for layer in TAPPED], 1)

    def drafts(self, tokens, count):
        """The logits of `count` drafts after `tokens`, and the drafts."""
        hidden = self.tapped(tokens)[:-1] @ self.weights["fc.weight"].T
        seconds, found, logits = list(tokens[1:]), [], []
        for _ in range(count):
            embedded = self.target["model.embed_tokens.weight"][seconds]
            one = normed(embedded, self.weights["midlayer.input_layernorm.weight"])
            other = normed(hidden, self.weights["midlayer.hidden_norm.weight"])
            residual = other if self.normalises_residual else hidden
            out = layer_of(self.weights, "midlayer.", torch.cat((one, other), 1), residual)
            logits.append(normed(out[-1:], self.weights["norm.weight"]) @ self.weights["lm_head.weight"].T)
            draft = int(logits[-1].argmax())
            found.append(draft + int(self.head["d2t"][draft]))
            hidden, seconds = torch.cat((hidden, out[-1:])), [*seconds, found[-1]]
        return torch.cat(logits), found


def normed(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def layer_of(weights, at, attention_input, residual):
    count = len(residual)
    angles = torch.arange(count)[:, None] / 10000.0 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cosine, sine = (each.repeat(1, 2) for each in (angles.cos(), angles.sin()))

    def heads(name):
        return (
            (attention_input @ weights[f"{at}self_attn.{name}_proj.weight"].T).view(count, -1, HEAD_DIM).transpose(0, 1)
        )

    def rotated(x):
        low, high = x.chunk(2, -1)
        return x * cosine + torch.cat((-high, low), -1) * sine

    query, key, value = rotated(heads("q")), rotated(heads("k")), heads("v")
    key, value = (each.repeat_interleave(HEADS // len(each), 0) for each in (key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    hidden = residual + mixed.transpose(0, 1).flatten(1) @ weights[f"{at}self_attn.o_proj.weight"].T
    into = normed(hidden, weights[f"{at}post_attention_layernorm.weight"])
    gate, up, down = (weights[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return hidden + (functional.silu(into @ gate.T) * (into @ up.T)) @ down.T
