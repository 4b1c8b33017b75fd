"""Faults in real processes under load, checked with streams whose tokens are known in advance."""
