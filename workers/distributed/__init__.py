"""The ranks of a model: their collectives, and each one's cores and memory. Open tensor_parallel.py first."""
