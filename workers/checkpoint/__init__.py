"""Reads a model folder: config.json as a geometry, safetensors as weights in a few forms. Open geometry.py."""
