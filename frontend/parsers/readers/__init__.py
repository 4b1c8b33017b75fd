"""Readers of one kind of text each, of which a format is made."""
