"""Tokens in, tokens out, over HTTP. Open request.py first."""
