"""Answers that outlive their connections, by Idempotency-Key. Open keys.py first."""
