"""The sans-I/O engine: messages and the time are its inputs, messages its outputs. Open engine.py first."""
