"""Matrices in the blocks of GGUF files, values of every block format, codes of e4m3. Open block_weight.py first."""
