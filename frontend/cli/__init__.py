"""The command line. Nothing heavy is imported before it is needed, so `--help` answers at once."""
