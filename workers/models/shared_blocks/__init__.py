"""Decoders that use weights several times: blocks between layers (Zamba2, decoder.py), all layers (Ouro, looped.py)."""
