"""The requests of a client: received outputs, and those not yet read. Open stream_table.py first."""
