"""Flags, environment and file to one Config; a model's name to its folder. Open settings.py first."""
