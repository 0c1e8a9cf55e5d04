"""How is an owner run as a process of this machine, and what does it tell of itself?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from wherry.deploy.replicas import OwnerAddress, OwnerNotStarted
from wherry.workers.python_path import for_children

#: The last lines of its log, for the reason of a failure.
LAST_LINES: Final = 8
#: Seconds beyond its drain timeout in which an owner ends that is told to.
ENDING: Final = 15.0

SERVE: Final = (sys.executable, "-m", "wherry", "serve")


#: Of a settings file: its tables by name.
Settings = Mapping[str, Mapping[str, Any]]


class OwnerProcess:
    """`wherry serve TARGETS` with a port for rows, as a child process. It ends with this process.

    `settings` is its settings file, as tables `server` and `models`; WHERRY_ variables of this
    process do not count. Its log goes to this process's standard error. All methods block, and are
    for any thread.
    """

    def __init__(
        self,
        targets: Sequence[str],
        settings: Settings,
        *,
        host: str,
        drain_timeout: float,
        command: Sequence[str] = SERVE,
    ) -> None:
        self._command = [*command, *targets]
        address = {"host": host, "port": 0, "rows_host": host, "rows_port": 0}
        server = {**settings.get("server", {}), **address, "drain_timeout": drain_timeout}
        self._settings = {**settings, "server": server}
        self._drain_timeout = drain_timeout
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
        # A file, as other users can read a process's flags and variables: it may hold secrets.
        with tempfile.NamedTemporaryFile(suffix=".json") as settings:
            settings.write(msgspec.json.encode(self._settings))
            settings.flush()
            ready, write = os.pipe()
            with open(ready, encoding="utf-8") as told:
                try:
                    self._spawn(settings.name, write)
                finally:
                    os.close(write)
                lines = told.read().splitlines()
        address = _address(lines)
        if address is None:
            how = self.wait()
            raise OwnerNotStarted("\n".join([how, *self._last_lines]))
        return address

    def _spawn(self, settings: str, ready: int) -> None:
        with self._lock:
            if self._is_over:
                raise OwnerNotStarted("it was stopped")
            stop, self._lifeline = os.pipe()
            flags = ["--config", settings, "--ready-fd", str(ready), "--stop-fd", str(stop)]
            try:
                self._process = subprocess.Popen(
                    [*self._command, *flags],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[ready, stop],
                    env=_environment(),
                    process_group=0,  # a Ctrl-C in the terminal is for this process
                )
            finally:
                os.close(stop)
            log = threading.Thread(target=self._copy_log, name="wherry-owner-log", daemon=True)
            log.start()
            self._log = log  # `stop`, which sees the process now, joins it

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
            process.wait(None if at_once else self._drain_timeout + ENDING)
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


def _environment() -> dict[str, str]:
    return {name: value for name, value in for_children().items() if not name.startswith("WHERRY_")}


def _address(lines: Sequence[str]) -> OwnerAddress | None:
    """What a ready server writes: its URL, and `rows HOST:PORT`."""
    if len(lines) < 2:
        return None
    return OwnerAddress(lines[1].removeprefix("rows "), lines[0])
