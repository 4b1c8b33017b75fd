"""One request in, one answer or its events out: bodies, errors, keys, metrics. Open exchange.py first."""
