"""Published formats whose codes lie in 32-bit words."""
