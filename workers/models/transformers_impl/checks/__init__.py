"""What is found out, and proved, by running a model of the transformers library before it serves."""
