"""Plain torch: the oracle, and the backend for machines without kernels. Open backend.py first."""
