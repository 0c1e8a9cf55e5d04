"""`wherry`, and `python -m wherry`, are the command line."""

import io
import os
import signal
import sys
import threading
import time
from contextlib import suppress

INTERRUPTED = 130
#: Seconds that threads have to end when the command is done.
THREADS_LEFT = 5.0


def main() -> int:
    """Run the command; Ctrl-C ends it quietly, also while its code is still being read."""
    try:
        open_standard_files()
        if os.getpid() == 1:
            continue_in_child()
        escape_unencodable()
        from wherry.server.api import main as command

        code = command()
    except KeyboardInterrupt:
        code = INTERRUPTED
    end_without_threads(code)
    return code


def end_without_threads(code: int) -> None:
    """Exit in a while, if this process has not by then: Python waits for non-daemon threads of a
    model, which may never end."""

    def give_up() -> None:
        time.sleep(THREADS_LEFT)
        left = [one.name for one in threading.enumerate() if not one.daemon]
        names = ", ".join(name for name in left if name != threading.main_thread().name)
        sys.stderr.write(f"wherry: ends without threads that do not end: {names}\n")
        sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=give_up, name="wherry-end", daemon=True).start()


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


def continue_in_child() -> None:
    """Continue in a child: return there, and never here.

    Orphans become children of the first process of a container, which must reap them: this one does
    that, passes every signal on, and ends as its child does. Call it before there are threads.
    """
    every = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, every)
    child = os.fork()
    if not child:
        os.setpgid(0, 0)  # a terminal's Ctrl-C comes once
        with suppress(OSError):
            os.tcsetpgrp(0, os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if os.environ.get("LISTEN_PID") == "1":
            os.environ["LISTEN_PID"] = str(os.getpid())
        return
    os.closerange(3, 2**16)  # a pipe has to end with the child
    while True:
        number = signal.sigwait(every)
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(child, number)
            continue
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    os._exit(code if code >= 0 else 128 - code)


def escape_unencodable() -> None:
    """Write a character that the terminal's encoding does not have as its number, to stdout as to
    stderr: a model's text can be in any script."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    from wherry.core.workers.python_path import standard_first  # an api imports typing

    sys.path[:] = standard_first(sys.path)  # `python -m` has put this folder before all
    sys.exit(main())
