"""Blocks of the KV cache in memory and on disk: files, checksums, and threads that copy them. Open tier.py first."""
