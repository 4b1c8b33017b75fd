"""Plain torch: the oracle, and what serves where there are no kernels. Open backend.py first."""
