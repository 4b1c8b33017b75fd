"""Read this rank's weights of a checkpoint: one reader for each part of a model. Open layer_reader.py first."""
