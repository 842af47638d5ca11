"""`python -m outpace` is the `outpace` command."""

from outpace.cli import main

if __name__ == "__main__":
    main()
