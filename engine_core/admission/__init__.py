"""What is refused and why, when to come back, deadlines, and requests that may kill a core. Open admission.py first."""
