"""Blocks of the KV cache that the workers also keep elsewhere. Open tiers.py first."""
