"""What people and programs meet: HTTP server, LLM, client library, command line. Open http/routes/table.py first."""
