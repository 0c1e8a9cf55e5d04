"""`python -m wherry` is the command line."""

import sys

from wherry.cli import main

if __name__ == "__main__":
    sys.exit(main())
