"""The LoRA adapters that a frontend knows: from the configuration, loaded by clients, found by plugins."""
