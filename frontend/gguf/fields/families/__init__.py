"""The fields of config.json that single families have besides those of all GGUF models, by their kind of layers."""
