"""Vectors in the place of tokens: which ones a model gives, and their arithmetic on the host. Open spec.py first."""
