"""The requests of a benchmark, their schedule, and the recorded answers. Open load.py first."""
