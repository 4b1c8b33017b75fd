"""A package that extends paged-serve through its entry points alone."""
