"""What does HAProxy's agent check learn of this server: which weight, and whether to send anything?

HAProxy connects, may send the text of its `agent-send`, and reads one line. That text is the time
of a row on a good host, as `20ms`: without it a host cannot know that it is slow.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final, cast

from wherry.core.api import LoadReport
from wherry.server.calls.client_text import without_paths
from wherry.server.connections.sockets import address_text

#: Seconds in which `agent-send` arrives, if there is one.
ARRIVAL: Final = 0.1
EXPECTED: Final = re.compile(rb"\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*")
UNITS: Final = {b"ms": 1e-3, b"s": 1.0}


def agent_line(
    load: LoadReport, *, draining: bool, not_ready: Mapping[str, str], row_seconds: float
) -> str:
    """The line of a server with this load, where a row takes `row_seconds` on a good host.

    What a row takes counts by its cube: with its square a host that is five times slower still
    gets more than 1 % of the requests, and so is their 99th percentile. So does the share of
    requests that did not fail: failing is quick, and attracts requests. The wait beyond a full
    batch counts as it is, or hosts that are all busy would get all requests in turns.
    """
    if draining:
        return "drain"
    if not_ready:
        why = "; ".join(f"{name}: {without_paths(reason)}" for name, reason in not_ready.items())
        return "down #" + " ".join(why.split())
    speed = _share(row_seconds, load.one_seconds)
    room = _share(load.full_seconds, load.wait_seconds)
    answered = _share(load.requests_per_second, load.requests_per_second + load.errors_per_second)
    return f"up ready {max(1, round(100 * (speed * answered) ** 3 * room))}%"


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 1.0


def expected_seconds(sent: bytes) -> float | None:
    """The time of a row by `agent-send`; None if it has none."""
    found = EXPECTED.fullmatch(sent)
    return float(found[1]) * UNITS[found[2]] if found else None


class AgentCheck:
    """Answers agent checks on a port of its own, to the end of the server."""

    def __init__(
        self,
        load: Callable[[], LoadReport],
        not_ready: Callable[[], Mapping[str, str]],
        draining: Callable[[], bool],
    ) -> None:
        self._load, self._not_ready, self._draining = load, not_ready, draining
        self._server: asyncio.Server | None = None
        self._open: set[_Check] = set()
        #: By the last `agent-send` that had a time; before the first, the best of this host.
        self._expected: float | None = None
        self._best = 0.0

    async def start(self, host: str, port: int, *, reuse_port: bool) -> str:
        """Listen, and return the address. OSError if it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Check(self.line, self._open), host, port, reuse_port=reuse_port or None
        )
        return address_text(self._server.sockets[0].getsockname()) or ""

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        while self._open:
            for check in self._open:
                check.transport.abort()
            await asyncio.sleep(0)

    def line(self, sent: bytes) -> str:
        load = self._load()
        if load.one_seconds:
            self._best = min(load.one_seconds, self._best or load.one_seconds)
        self._expected = expected_seconds(sent) or self._expected
        return agent_line(
            load,
            draining=self._draining(),
            not_ready=self._not_ready(),
            row_seconds=self._expected or self._best,
        )


class _Check(asyncio.Protocol):
    """One check: what is sent in the first line or the first moment, and the answer."""

    transport: asyncio.Transport

    def __init__(self, line: Callable[[bytes], str], open_checks: set[_Check]) -> None:
        self._line, self._open = line, open_checks
        self._sent = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        asyncio.get_running_loop().call_later(ARRIVAL, self._answer)

    def data_received(self, data: bytes) -> None:
        self._sent += data[:64]
        if b"\n" in data or len(self._sent) >= 64:
            self._answer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)

    def _answer(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._line(self._sent).encode() + b"\n")
            self.transport.close()
