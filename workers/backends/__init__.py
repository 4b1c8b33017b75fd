"""What a model computes with: a folder a platform, the same file names in each."""
