"""Blocks of the KV cache on disk: files, checksums, and the threads that copy them. Open tier.py first."""
