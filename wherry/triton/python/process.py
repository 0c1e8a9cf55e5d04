"""How is the process of a Python model started, and its file imported?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from wherry.core.api import FrameSocket, Garbage, LoadFailed, shortage, start_worker
from wherry.triton.python.environment import Interpreter
from wherry.triton.python.stub import wire
from wherry.triton.python.stub_protocol import Plain, StubDecoder, StubEncoder, StubMemory

_STUB = os.path.join(os.path.dirname(os.path.abspath(wire.__file__)), "__main__.py")


class PythonProcess:
    """The process of a Python model, its sockets and the memory that it shares with this one.

    An instance takes all three; until then `close` ends it. Raises OSError for what this process is
    short of.
    """

    def __init__(self, runs: Interpreter, model: str, instance: str) -> None:
        file = wire.memory_file("wherry-slab", wire.SLAB_BYTES)
        try:
            self.memory = StubMemory(file)
            try:
                self.process, source, target = start_worker(
                    [runs.python, _STUB], runs.environment, model, instance, file
                )
            except BaseException:
                self.memory.close()
                raise
        finally:
            os.close(file)
        self.decoder = StubDecoder(self.memory.views)
        encoder = StubEncoder(self.memory)
        self.sockets = FrameSocket(
            source, target, encoder, self.decoder, wait=self.process.wait_for
        )

    def open(self, start: dict[str, Any]) -> str | None:
        """Have it import the model's file. Returns the completed configuration, if `start` asks for
        it. Blocks. Raises LoadFailed."""
        try:
            self.sockets.send(Plain(["start", start]))
            message = self.sockets.receive()
            if message[0] == "failed":
                raise load_failed(message)
            if message[0] != "opened":
                raise Garbage(f"{message[0]!r} instead of an opened model")
        except (EOFError, OSError, Garbage) as error:
            if shortage(error):  # of the server: nothing is wrong with the process
                raise
            how, _ = self.process.end(error if isinstance(error, Garbage) else EOFError())
            text = f"its process {how} while it imported the model; what it wrote is in the log"
            raise LoadFailed(text) from None
        completed: str | None = message[2]
        return completed

    def close(self) -> None:
        """End it without finalize(): it was not initialized."""
        self.process.kill()
        self.process.wait()
        self.sockets.close()
        self.process.close()
        self.memory.close()


def load_failed(message: Sequence[Any]) -> LoadFailed:
    """What the model's file, auto_complete_config() or initialize() raised."""
    _, _, kind, text, traceback = message
    if kind == "ModuleNotFoundError":
        text += (
            "; install it for the Python that wherry runs with, or give the model a Python of its"
            " own (EXECUTION_ENV_PATH)"
        )
    failed = LoadFailed(f"{kind}: {text}")
    failed.add_note(traceback)
    return failed
