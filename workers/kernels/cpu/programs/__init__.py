"""Kernel calls that run together in one call from Python. Open program.py first."""
