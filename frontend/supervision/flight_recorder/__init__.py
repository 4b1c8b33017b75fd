"""Reports on all processes when one is lost, written and read. Open recorder.py first."""
