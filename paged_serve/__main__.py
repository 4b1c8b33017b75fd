"""`paged-serve`, and `python -m paged_serve`."""

import signal
import sys


def main() -> None:
    """An interrupt ends the command without a traceback, also one that comes while its modules are imported."""
    is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # ignored in a script's background
    if is_raised:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from paged_serve.frontend.cli.main import main as run  # takes longer than a hasty ctrl-C

    if is_raised:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(1)


if __name__ == "__main__":
    main()
