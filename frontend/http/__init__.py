"""The HTTP server over the client library: plain ASGI, msgspec in and out. Open routes/table.py first."""
