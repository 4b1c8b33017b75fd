"""Responses that outlive their connection and their server: a database, and what is computed without a connection."""
