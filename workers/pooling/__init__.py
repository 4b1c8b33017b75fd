"""Vectors instead of tokens: the kinds that a model has, and their arithmetic on the host. Open spec.py first."""
