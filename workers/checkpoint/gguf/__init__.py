"""Reads the tensors of GGUF files under the names of a Hugging Face checkpoint. Open gguf_checkpoint.py first."""
