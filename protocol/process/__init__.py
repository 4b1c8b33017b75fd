"""How a process starts, sends heartbeats, records its events, and ends. Open lifecycle.py first."""
