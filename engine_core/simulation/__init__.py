"""The engine in a world of fakes: virtual time, seeded faults, and an oracle for every token."""
