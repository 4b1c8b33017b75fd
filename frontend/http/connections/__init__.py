"""HTTP/1.1 on connections, within limits of time, number and memory. Open http_protocol.py first."""
