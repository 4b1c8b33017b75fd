"""People and programs outside: CLI, supervisor, HTTP server, text in and out, LLM, client library."""
