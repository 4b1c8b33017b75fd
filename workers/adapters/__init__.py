"""LoRA adapters on their way into memory: reading PEFT folders, checking them, loading beside the steps."""
