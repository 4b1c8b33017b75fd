"""Published formats whose codes lie in words of 32 or 8 bits."""
