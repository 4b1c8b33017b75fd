"""The messages, the channels that carry them, and what damaged bytes do to both."""
