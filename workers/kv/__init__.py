"""The paged cache's tensors, which layers share a block table, and how many blocks fit. Open kv_cache.py first."""
