"""Blocks of the KV cache in host memory and on disk: files, checksums, and the threads that copy them. Open tier.py first."""
