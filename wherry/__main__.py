"""`wherry`, and `python -m wherry`, are the command line."""

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command; Ctrl-C ends it quietly, also while its code is still being read."""
    try:
        from wherry.cli import main as command

        return command()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
