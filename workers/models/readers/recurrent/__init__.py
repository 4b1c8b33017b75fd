"""Reads the mixers of recurrent layers. Open recurrent_reader.py first."""
