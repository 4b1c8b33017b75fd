"""A file of packed weights, from which later starts read."""
