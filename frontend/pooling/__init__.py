"""Models that answer with vectors: what their files say, texts and pairs to prompts, for HTTP and `LLM` alike."""
