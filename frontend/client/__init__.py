"""The client library: tokens in, tokens out, over ZeroMQ. Open async_client.py first."""
