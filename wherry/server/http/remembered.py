"""Which heads of requests has a listener read before? Decision 27 says why they are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wherry.server.http.exchange import RequestHead

HEAD_BYTES: Final = 2**11
"""The longest head that is remembered."""

MAX_HEADS: Final = 512
MAX_BYTES: Final = 2**18
"""Bounds of all heads together, in heads and in their bytes. An entry takes some four times its
bytes."""

MAX_SIGHTED: Final = 1024
"""Heads that have come once and are waited for, by their hashes."""


class RememberedHeads:
    """The heads that the connections of one listener have read, by their bytes.

    A head is remembered when it comes for the second time: heads that differ in each request, by an
    id or a trace, are not kept. With equal bytes the outcome of every check of a head is equal, as
    the checks ask nothing but the head and the listener's settings.
    """

    def __init__(self, read: Callable[[bytes], RequestHead | None]) -> None:
        """`read` checks and parses a head with its empty line; None for one that must be parsed
        each time."""
        self._read = read
        #: By their bytes before the empty line; None: to be parsed each time.
        self.known: dict[bytes, RequestHead | None] = {}
        self._bytes = 0
        self._sighted: set[int] = set()

    def __repr__(self) -> str:
        return f"<RememberedHeads: {len(self.known)} of {self._bytes} bytes>"

    def sight(self, data: bytes) -> RequestHead | None:
        """Note a head that `known` does not give. Return it, parsed, when it has come before."""
        if data in self.known or len(data) > HEAD_BYTES:
            return None
        # The hash of bytes is a secret of this process: no client can choose two that are equal.
        number = hash(data)
        if number not in self._sighted:
            if len(self._sighted) >= MAX_SIGHTED:
                self._sighted.clear()
            self._sighted.add(number)
            return None
        head = self._read(data + b"\r\n\r\n")
        if len(self.known) >= MAX_HEADS or self._bytes + len(data) > MAX_BYTES:
            self.known.clear()
            self._bytes = 0
        self.known[data] = head
        self._bytes += len(data)
        return head
