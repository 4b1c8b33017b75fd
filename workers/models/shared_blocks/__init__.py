"""Decoders whose layers share blocks of attention and a feed-forward (Zamba2). Open decoder.py first."""
