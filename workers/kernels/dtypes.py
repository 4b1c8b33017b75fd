"""The dtypes of activations that the CPU kernels know."""

import torch

DTYPE_CODES = {torch.bfloat16: 0, torch.float32: 1, torch.float16: 2}  # Dtype of csrc/cpu/api.h
