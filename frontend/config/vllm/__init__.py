"""Command lines and keyword arguments that were written for vLLM. Open flags.py first."""
