"""Turns logits into token ids by an ordered list of small pure functions; each row's result depends on it alone."""
