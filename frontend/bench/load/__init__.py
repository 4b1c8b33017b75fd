"""What a benchmark sends, when, and what comes back. Open load.py first."""
