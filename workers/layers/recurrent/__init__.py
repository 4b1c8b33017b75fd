"""What a backend computes for recurrent layers. Open recurrences.py first."""
