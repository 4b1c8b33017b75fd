"""`paged-serve bench`: figures that a person can read and a program can compare."""
