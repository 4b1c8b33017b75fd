"""Building blocks that every family shares; each keeps a row's bits independent of its batch."""
