"""From the engine's deltas to the events of an answer: batches, order, interval and memory."""
