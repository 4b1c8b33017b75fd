"""The kernels of LoRA adapters."""
