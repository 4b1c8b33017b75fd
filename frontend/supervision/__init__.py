"""The supervisor's parts: children and their table, the control link, recovery, silence, shutdown."""
