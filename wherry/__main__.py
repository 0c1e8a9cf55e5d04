"""`wherry`, and `python -m wherry`, are the command line."""

import io
import os
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command; Ctrl-C ends it quietly, also while its code is still being read."""
    try:
        open_standard_files()
        write_what_can_be_written()
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


def write_what_can_be_written() -> None:
    """Write a character that the terminal's encoding does not have as its number, to stdout as to
    stderr: what a model says may be in any script."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    from wherry.workers.python_path import standard_first

    sys.path[:] = standard_first(sys.path)  # `python -m` has put this folder before all
    sys.exit(main())
