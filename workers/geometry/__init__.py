"""What a model computes, independent of its family and its files. See geometry.py first."""
