"""Turns the required form of an output into the grammar that a worker enforces."""
