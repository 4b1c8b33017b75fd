"""Our CPU kernels, called on torch tensors. Open library.py first."""
