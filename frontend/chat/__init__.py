"""`paged-serve chat`: a conversation in the terminal. Open command.py first."""
