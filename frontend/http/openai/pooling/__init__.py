"""Answers that are vectors, scores, ranks and classes. Open endpoints.py first."""
