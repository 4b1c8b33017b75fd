"""From logits to token ids: an ordered list of small pure functions, each depending on its own row alone."""
