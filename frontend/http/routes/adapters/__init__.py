"""The routes that load and unload LoRA adapters."""
