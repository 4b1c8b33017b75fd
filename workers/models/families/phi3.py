"""Phi-3 and Phi-4: as Llama, but one matrix of q, k and v, and one of gate and up; every layer may slide."""

from .family import Family, WeightNames
from .mistral import every_layer_slides

LAYER = "model.layers.{}."
QKV, GATE_UP = f"{LAYER}self_attn.qkv_proj", f"{LAYER}mlp.gate_up_proj"
NAMES = WeightNames(query=QKV, key=QKV, value=QKV, gate=GATE_UP, up=GATE_UP)
PHI3 = Family("phi3", ("Phi3ForCausalLM",), NAMES, sliding_windows=every_layer_slides)
