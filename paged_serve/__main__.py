"""`python -m paged_serve` is `paged-serve`."""

from paged_serve.frontend.cli.main import main

if __name__ == "__main__":
    main()
