"""Anthropic's interface, in terms of a chat: requests in, messages and their events out. Open chat_request.py first."""
