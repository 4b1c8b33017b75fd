"""How a process begins, shows that it makes progress, records what it did, and ends. Open lifecycle.py first."""
