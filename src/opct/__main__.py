"""`python -m opct` is the command line."""

from opct.cli.app import main

if __name__ == "__main__":
    main()
