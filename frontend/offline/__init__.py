"""LLM and AsyncLLM: offline inference in a program, without an HTTP server. Open llm.py first."""
