"""Endpoints that return vectors, scores, rankings and classes. Open endpoints.py first."""
