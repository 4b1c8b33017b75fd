"""Rows of running requests, and what a forward pass reads of them. Open input_batch.py first."""
