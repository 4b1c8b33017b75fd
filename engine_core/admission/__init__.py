"""Refusals and when to retry, deadlines, and requests that may kill a core. Open admission.py first."""
