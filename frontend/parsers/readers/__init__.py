"""Readers, each for one kind of text; a format combines them."""
