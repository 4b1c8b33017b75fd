"""The core's main loop and its sockets: the links to clients and to workers. Open engine_process.py first."""
