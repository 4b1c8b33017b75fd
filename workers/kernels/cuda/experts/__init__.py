"""The CUDA kernels of mixtures of experts. Open routing.py first."""
