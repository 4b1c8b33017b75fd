"""Parses tool calls and reasoning in generated text. Open output_parser.py first."""
