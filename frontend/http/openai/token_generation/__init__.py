"""/inference/v1/generate: tokens in, tokens out. Open request.py first."""
