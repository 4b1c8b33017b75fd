"""Typed channels over ZeroMQ: authentication, keys, the run directory. Open channel.py first."""
