"""Our CPU kernels as a backend. Open backend.py first."""
