"""Turns a Hugging Face folder into a model. Open loading.py first; families/ has one file per family."""
