"""What a client knows of its requests: what came, and what its reader has yet to take. Open stream_table.py first."""
