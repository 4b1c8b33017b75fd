"""Typed wrappers of the kernels in csrc; they check shapes and make no decisions."""
