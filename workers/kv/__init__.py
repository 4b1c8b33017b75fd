"""The paged KV cache's tensors, the layers that share a block table, the number of blocks. Open kv_cache.py first."""
