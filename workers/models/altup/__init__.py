"""Decoders with alternating updates. Open decoder.py first."""
