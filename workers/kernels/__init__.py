"""Our CPU kernels, called on torch tensors: the libraries of csrc/cpu, packed weights, matrix products."""
