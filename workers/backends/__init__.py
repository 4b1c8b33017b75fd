"""The implementations of a model's operations: one folder per platform, with the same file names in each."""
