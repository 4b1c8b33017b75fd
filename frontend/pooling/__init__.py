"""Pooling models, for HTTP and `LLM`: their files, and the prompts of texts and pairs of texts."""
