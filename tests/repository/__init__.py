"""The repository itself: its layout and words, the evidence that its pages name, its pins and its wheel."""
