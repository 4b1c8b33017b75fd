"""Starts, watches, replaces and ends all processes. Open supervisor.py first."""
