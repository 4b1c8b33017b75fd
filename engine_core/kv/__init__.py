"""KV blocks: which sequences own them, which can be found again, which is evicted. Open kv_cache.py first."""
