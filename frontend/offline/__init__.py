"""LLM and AsyncLLM: a model in a program's hands, without a server. Open llm.py first."""
