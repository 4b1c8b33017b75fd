"""Our CUDA kernels (csrc/cuda); each has a function that checks shapes and fills the struct of parameters."""
