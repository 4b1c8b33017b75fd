"""Responses that outlive their connection and their server: a database, and runs without a connection."""
