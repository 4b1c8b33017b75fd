"""The sans-I/O heart: messages and the time come in, messages go out. Open engine.py first."""
