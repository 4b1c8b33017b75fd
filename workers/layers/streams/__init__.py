"""Several residual streams for each token. Open stream_ops.py first."""
