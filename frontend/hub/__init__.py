"""`paged-serve pull`, `ls` and `rm`: models of the Hugging Face hub on this machine. Open cache.py first."""
