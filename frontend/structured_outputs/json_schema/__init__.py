"""Rewrites JSON Schema with the keywords that grammars support."""
