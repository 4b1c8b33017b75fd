"""The ranks of a model: what they exchange, which cores and memory each has. Open tensor_parallel.py first."""
