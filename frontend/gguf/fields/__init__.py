"""config.json of a GGUF model: its architecture's fields, from the metadata. Open config_fields.py first."""
