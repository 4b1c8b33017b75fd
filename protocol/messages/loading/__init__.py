"""What workers load: their model, before the first step; LoRA adapters and blocks of KV tiers, while steps run."""
