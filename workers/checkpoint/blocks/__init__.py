"""Matrices in the blocks of GGUF files, and the values of every block format. Open block_weight.py first."""
