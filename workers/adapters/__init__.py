"""LoRA adapters on their way into memory: reading PEFT folders, checking them, loading while steps run."""
