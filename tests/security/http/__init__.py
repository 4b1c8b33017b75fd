"""Attacks over the network: requests without a key, damaged bytes, ambiguous framing, timing."""
