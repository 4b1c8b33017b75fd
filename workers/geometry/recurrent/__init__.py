"""Kinds of recurrent layers: their sizes, and the states that they keep between tokens. Open recurrent.py first."""
