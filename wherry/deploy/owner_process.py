"""How is an owner run as a process of this machine, and what does it tell of itself?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from wherry.deploy.replicas import OwnerAddress, OwnerNotStarted

#: The last lines of its log, for the reason of a failure.
LAST_LINES: Final = 8
#: Seconds beyond its drain timeout in which an owner ends that is told to.
ENDING: Final = 15.0

SERVE: Final = (sys.executable, "-m", "wherry", "serve")


class OwnerProcess:
    """`wherry serve ARGUMENTS` with a port for rows, as a child process. It ends with this process.

    Its log goes to this process's standard error. All methods block, and are for any thread.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        host: str,
        drain_timeout: float,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = SERVE,
    ) -> None:
        addresses = ("--host", host, "--port", "0", "--rows-host", host, "--rows-port", "0")
        self._arguments = [*command, *arguments, *addresses]
        self._arguments += ["--drain-timeout", str(drain_timeout)]
        self._drain_timeout = drain_timeout
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **(environment or {}),
        }
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        #: It stops when this is closed, as when this process ends.
        self._lifeline: int | None = None
        self._log: threading.Thread | None = None
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._is_over = False

    def start(self) -> OwnerAddress:
        """Start it and wait until it is ready. OwnerNotStarted if it ends before, also if `stop` is
        called meanwhile."""
        ready, write = os.pipe()
        with open(ready, encoding="utf-8") as told:
            try:
                self._spawn(write)
            finally:
                os.close(write)
            lines = told.read().splitlines()
        address = _address(lines)
        if address is None:
            how = self.wait()
            raise OwnerNotStarted("\n".join([how, *self._last_lines]))
        return address

    def _spawn(self, ready: int) -> None:
        with self._lock:
            if self._is_over:
                raise OwnerNotStarted("it was stopped")
            stop, self._lifeline = os.pipe()
            try:
                self._process = subprocess.Popen(
                    [*self._arguments, "--ready-fd", str(ready), "--stop-fd", str(stop)],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[ready, stop],
                    env=self._environment,
                    process_group=0,  # a Ctrl-C in the terminal is for this process
                )
            finally:
                os.close(stop)
        self._log = threading.Thread(target=self._copy_log, name="wherry-owner-log", daemon=True)
        self._log.start()

    def wait(self) -> str:
        """Wait until it has ended. Returns how it did."""
        process = self._process
        if process is None:
            return "it was not started"
        code = process.wait()
        if self._log is not None:
            self._log.join()
        return f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"

    def stop(self, *, at_once: bool = False) -> None:
        """End it: at once, or when it has answered what it has."""
        with self._lock:
            self._is_over = True
            process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)
        try:
            process.wait(self._drain_timeout + ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
        self.wait()
        with self._lock:
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None

    def _copy_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace")
                self._last_lines.append(text.rstrip())
                sys.stderr.write(text)
                sys.stderr.flush()


def _address(lines: Sequence[str]) -> OwnerAddress | None:
    """What a ready server writes: its URL, and `rows HOST:PORT`."""
    if len(lines) < 2:
        return None
    host, _, port = lines[1].removeprefix("rows ").rpartition(":")
    return OwnerAddress(host.strip("[]"), int(port), lines[0])
