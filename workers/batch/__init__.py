"""The rows of running requests, and the inputs that a forward pass reads from them. Open input_batch.py first."""
