"""The HTTP server: OpenAI's routes over the client library. Plain ASGI; msgspec in and out."""
