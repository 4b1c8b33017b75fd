"""Building blocks that all families share; in all of them, a row's bits do not depend on its batch."""
