"""Faults in real processes under load, judged by streams whose every token is known before."""
