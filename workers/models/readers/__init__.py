"""Read this rank's weights of a checkpoint: vectors, norms, projections, feed-forwards. Open weight_reader.py first."""
