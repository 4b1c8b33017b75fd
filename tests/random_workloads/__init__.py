"""Random workloads of whole engines: real processes, faults, and the bytes of an undisturbed engine."""
