"""Text to tokens and tokens to text: tokenizer, detokenizer, stop strings. Open tokenizer.py first."""
