"""What all processes did when one was lost, written down and read again. Open recorder.py first."""
