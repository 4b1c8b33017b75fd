"""GGUF files: header, metadata and tensor infos, checked before anything is used. Open container.py first."""
