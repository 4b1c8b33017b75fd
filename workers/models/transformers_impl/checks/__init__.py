"""Checks of a model of the transformers library that run it before it serves."""
