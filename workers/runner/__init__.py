"""A step: rows updated, batch built, forward pass, sampled, answered. Open model_runner.py first."""
