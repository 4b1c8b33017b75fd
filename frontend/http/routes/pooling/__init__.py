"""The routes that answer with vectors and what is made of them."""
