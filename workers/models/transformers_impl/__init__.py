"""Decoders of the transformers library without a family of our own: its modules, our products, cache and attention."""
