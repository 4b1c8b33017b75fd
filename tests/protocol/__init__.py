"""The messages, the channels that carry them, and the effect of corrupted bytes on both."""
