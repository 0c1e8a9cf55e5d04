"""How does a test get a server that is ready at its start and gone at its end?"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Unpack

from wherry.core.api import Model
from wherry.server.api import Server, ServerKeywords


@contextmanager
def local_server(
    *models: Model | type[Model], **options: Unpack[ServerKeywords]
) -> Iterator[Server]:
    """Serve on a free port in this process; `options` are those of `wherry.Server`.

    For example:

        with local_server(sentiment) as server, wherry.Client(server.url) as client:
            client.infer("sentiment", text="good")  # -> 'POSITIVE'
    """
    defaults: ServerKeywords = {"port": 0, "drain_timeout": 5.0}
    defaults.update(options)
    with Server(*models, **defaults) as server:
        yield server


@contextmanager
def running_server(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> Iterator[str]:
    """Yield the URL of `python -m wherry serve ARGUMENTS` on a free port, once it is ready.

        with running_server("app.py") as url, wherry.Client(url) as client:
            client.ready()  # -> True

    Raises RuntimeError with the server's log if it does not become ready.
    """
    with ServerProcess(*arguments, env=env, cwd=cwd) as server:
        yield server.url


class ServerProcess:
    """`python -m wherry serve ARGUMENTS --port 0` as a child process.

        with ServerProcess("app.py") as server:
            server.url.startswith("http://127.0.0.1:")  # -> True
            server.send(signal.SIGTERM)
            server.wait()  # -> 0

    Entering the `with` block waits until the server is ready, without polling; leaving it stops
    the server. With `own_group` a Ctrl-C in the terminal does not reach it.
    """

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        ready_timeout: float = 60.0,
        own_group: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._arguments = arguments
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._cwd = cwd
        self._ready_timeout = ready_timeout
        self._own_group = own_group
        self._pass_fds = pass_fds
        self.url = ""

    def __enter__(self) -> ServerProcess:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> ServerProcess:
        """Start the process without waiting for readiness."""
        # Not a pipe, which would fill up. Closed by stop().
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._ready, write_fd = os.pipe()
        # -P: a types.py in this folder would take the place of the standard library's.
        command = [sys.executable, "-P", "-m", "wherry", "serve"]
        if not {"--port", "--uds", "--fd"} & set(self._arguments):
            command += ["--port", "0"]
        command += ["--ready-fd", str(write_fd), *self._arguments]
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=[write_fd, *self._pass_fds],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=self._env,
                cwd=self._cwd,
                process_group=0 if self._own_group else None,
            )
        except BaseException:
            os.close(self._ready)
            self._log.close()
            raise
        finally:
            os.close(write_fd)
        return self

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.process.pid

    @property
    def log(self) -> str:
        """Output of the server so far: stdout and stderr."""
        size = os.fstat(self._log.fileno()).st_size
        # pread: the file position is shared with the child.
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def wait_ready(self) -> str:
        """Wait until every model is ready; return the URL. RuntimeError with the log otherwise."""
        line = b""
        ready = select.poll()
        ready.register(self._ready, select.POLLIN)
        gives_up_at = time.monotonic() + self._ready_timeout
        while not line.endswith(b"\n"):
            left = gives_up_at - time.monotonic()
            # In short waits, so that a Ctrl-C delivered to another thread is raised in between.
            readable = ready.poll(1000 * max(0.0, min(left, 1.0)))
            if not readable and left > 0:
                continue
            piece = os.read(self._ready, 4096) if readable else b""
            if not piece:
                how = "ended" if readable else f"was not ready after {self._ready_timeout:g} s"
                if readable:
                    how += f" with exit code {self.process.wait(10)}"
                raise RuntimeError(f"the server {how}:\n{self.log}")
            line += piece
        self.url = line.decode().splitlines()[0]
        return self.url

    def wait(self, timeout: float = 30.0) -> int:
        """Wait until the process ends; return its exit code."""
        return self.process.wait(timeout)

    def send(self, number: int) -> None:
        """Send a signal to the server process, not to its workers."""
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30.0) -> int:
        """Stop the server unless it has ended, and delete its log. Returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except BaseException as error:  # also on Ctrl-C
            self.process.kill()
            self.process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise RuntimeError(
                f"the server did not stop within {timeout:g} s:\n{self.log}"
            ) from None
        finally:
            if not self._log.closed:
                os.close(self._ready)
                self._log.close()
