"""How many drafts each sequence is worth: pure functions of numbers."""
