"""Events of the prefix cache: what they carry, and how to follow them."""
