"""The frontend's process. Open http_process.py first."""
