"""JSON Schema, rewritten in the keywords that grammars are made of."""
