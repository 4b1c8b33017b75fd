"""The interfaces to users and programs: HTTP server, LLM, client library, command line. Open http/routes/table.py
first."""
