"""`wherry`, and `python -m wherry`, are the command line."""

import os
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command; Ctrl-C ends it quietly, also while its code is still being read."""
    try:
        open_standard_files()
        from wherry.cli import main as command

        return command()
    except KeyboardInterrupt:
        return INTERRUPTED


def open_standard_files() -> None:
    """Open those of stdin, stdout and stderr that are closed, as /dev/null: a socket would get the
    free number, and be taken for one of them in this process and in the ones that it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
