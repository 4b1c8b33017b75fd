"""Mirrors of the structs of single features, beside those of parameters.py."""
