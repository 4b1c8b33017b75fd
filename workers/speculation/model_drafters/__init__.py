"""Drafters that compute with a model of their own: a smaller one, or a head."""
