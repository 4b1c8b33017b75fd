"""Typed wrappers of csrc: shapes are checked here, nothing is decided."""
