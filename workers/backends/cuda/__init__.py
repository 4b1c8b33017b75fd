"""Our CUDA kernels as a backend. Open backend.py first."""
