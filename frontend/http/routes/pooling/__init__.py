"""The routes that return vectors, scores, rankings and classes."""
