"""Vectors from LLM and AsyncLLM: their methods, and what they give back."""
