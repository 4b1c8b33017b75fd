"""One file per family of models."""
