"""Every message and the configuration, grouped by link, and the hash of all definitions. Open engine_core.py first."""
