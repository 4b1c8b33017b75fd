"""This user's folder for what outlives a program: reports of lost processes, the history of chats."""

import os
from pathlib import Path

DEFAULT_FOLDER = "~/.local/state"


def state_folder() -> Path | None:
    """`paged-serve` below $XDG_STATE_HOME, or ~/.local/state; None for a user without a home folder.

    The XDG base directory specification has relative paths ignored.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser(DEFAULT_FOLDER)
    return None if folder == DEFAULT_FOLDER else Path(folder) / "paged-serve"
