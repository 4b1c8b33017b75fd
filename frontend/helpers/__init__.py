"""Helper processes of a frontend, for work that untrusted input could make endless: chat templates and grammars."""
