"""Answers with the best of more outputs than they show: of several samples, or of all beams."""
