"""The paged KV cache's tensors, the layers that share a block table, and the number of blocks. Start at kv_cache.py."""
