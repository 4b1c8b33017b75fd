"""The routes and their handlers. Open table.py first."""
