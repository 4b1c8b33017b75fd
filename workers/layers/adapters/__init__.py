"""LoRA adapters in a model's layers: what they add to projections, the embedding and the output head."""
