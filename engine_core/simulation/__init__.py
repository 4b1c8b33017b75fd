"""The engine in a simulation: virtual time, seeded faults, and an oracle for every token."""
