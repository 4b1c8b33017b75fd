"""Contracts between the processes: messages, configuration, errors, and the channels that carry them."""
