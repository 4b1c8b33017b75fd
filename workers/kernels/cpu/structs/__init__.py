"""Mirrors of the structs of csrc/cpu that are not in parameters.py, by kind of layer."""
