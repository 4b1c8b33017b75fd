"""Reads a model folder: config.json, and tensors of safetensors and GGUF files as weights in canonical forms."""
