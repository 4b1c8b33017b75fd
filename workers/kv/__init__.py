"""The paged cache's tensors, and how many blocks fit. Open kv_cache.py first."""
