"""LLM and AsyncLLM: offline inference in a program, without a server. Open llm.py first."""
