"""A client's side of the link, sans-I/O: when requests are sent, resent and withheld. Open session.py first."""
