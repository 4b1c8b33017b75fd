"""Anthropic's Messages API, translated to and from chats. Open chat_request.py first."""
