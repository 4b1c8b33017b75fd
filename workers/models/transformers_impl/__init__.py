"""Decoders that only the transformers library implements: its modules, with our products, cache and attention."""
