"""Heads that draft from a target's hidden states. Open head.py first."""
