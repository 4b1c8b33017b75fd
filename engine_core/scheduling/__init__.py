"""One step: which sequences run, which are preempted, and the message to the workers. Open scheduler.py first."""
