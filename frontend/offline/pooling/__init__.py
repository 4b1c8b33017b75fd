"""The pooling methods of LLM and AsyncLLM, and their outputs."""
