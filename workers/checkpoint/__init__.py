"""Reads a model folder: config.json as a Geometry, safetensors as weights in canonical forms. See geometry.py first."""
