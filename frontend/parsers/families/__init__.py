"""The formats of families of models, by the kind of their calls."""
