"""What the engine sends to its clients, within their credit. Open client_outbox.py first."""
