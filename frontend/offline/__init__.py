"""The parts of LLM: prompts in, batches through the engine, outputs put together."""
