"""The command line. Nothing heavy is imported before it is needed: `--help` answers in a blink."""
