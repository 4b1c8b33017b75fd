"""The fields of a request body, and their translation into prompts and sampling parameters."""
