"""Encoders: bidirectional attention, vectors instead of tokens. Open encoder.py first."""
