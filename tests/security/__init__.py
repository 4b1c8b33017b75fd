"""Attacks that must fail: code that runs from data, a second way in, input that crashes the service."""
