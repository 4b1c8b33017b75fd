"""Attention over the paged cache, behind one small protocol."""
