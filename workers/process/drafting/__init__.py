"""Drafts that another model makes for the target: loading it, and its memory. Open draft_source.py first."""
