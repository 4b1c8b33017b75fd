"""Simulations of the real client session and engine under one virtual clock, and bugs that they must detect."""
