"""Turns a GGUF file into a model folder: config.json, tokenizer files, and a link to the file. Open folder.py first."""
