"""Building blocks that all families share; in each, a row's bits do not depend on its batch."""
