"""Names of tensors in checkpoints."""
