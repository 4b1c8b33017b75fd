"""Turns messages and tools into a prompt, for HTTP and LLM alike. Open conversation.py first."""
