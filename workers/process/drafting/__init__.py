"""Drafts that a model makes beside the target: loading it, and its memory. Open draft_source.py first."""
