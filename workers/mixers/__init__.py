"""Token mixers of layers: attention. Open mixer.py first."""
