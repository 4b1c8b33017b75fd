"""Tool calls in generated text, a format a file."""
