"""Processes that a frontend starts for work that a stranger's input could make endless: templates, grammars."""
