"""`paged-serve bench`: benchmarks whose results are printed as tables and written as JSON."""
