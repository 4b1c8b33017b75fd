"""Token mixers of layers: attention and recurrences. Open mixer.py first."""
