"""Heads that draft from a target's hidden states. Open eagle3.py first."""
