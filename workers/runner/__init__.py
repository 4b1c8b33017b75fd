"""One step: update rows, build the batch, run the model, sample, answer. Open model_runner.py first."""
