"""Policy in pure Python: scheduler, block pool, prefix cache, requests. Open engine/engine.py first."""
