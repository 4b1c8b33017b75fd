"""Mirrors of the kernels' structs that one area uses alone, and the table of all kernels: kernels.py."""
