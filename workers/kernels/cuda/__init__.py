"""Our CUDA kernels (csrc/cuda), each behind a function that checks shapes and fills its struct of parameters."""
