"""Drafts of a row's next tokens, and how a step verifies them. Open verification.py first."""
