"""What does `wherry bench` tell the program that runs it?"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from wherry.cli.bench.interrupts import Interrupts

MISSED = 1
NOT_MEASURED = 2
INTERRUPTED = 130


def exit_code(interrupts: Interrupts, not_measured: Iterable[str], missed: Iterable[str]) -> int:
    """Say on stderr what is wrong; the process's exit code."""
    wrong = [*filter(None, not_measured)]
    for line in (*wrong, *missed):
        sys.stderr.write(f"wherry: {line}\n")
    if interrupts.asked():
        return INTERRUPTED
    return NOT_MEASURED if wrong else MISSED if missed else 0
