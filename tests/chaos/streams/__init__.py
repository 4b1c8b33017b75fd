"""The load of streams while faults happen: its requests, transports and results."""
