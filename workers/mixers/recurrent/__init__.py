"""Recurrent layers as mixers: a projection, an operation on a state, a gate, and the output projection."""
