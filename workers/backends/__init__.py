"""Implementations of a model's operations: one folder per platform, each with the same file names."""
