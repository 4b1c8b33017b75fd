"""Messages and tools to a prompt, one way for HTTP and LLM. Open conversation.py first."""
