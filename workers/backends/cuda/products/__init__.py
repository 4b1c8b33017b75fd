"""Matrix products of the CUDA backend: by the library in fixed numbers of rows, and by our kernels."""
