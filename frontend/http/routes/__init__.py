"""Every route and what serves it. Open table.py first."""
