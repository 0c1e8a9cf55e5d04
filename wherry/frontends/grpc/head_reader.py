"""How do the header blocks of one connection become heads of calls, at little cost?

A client's blocks are mostly equal, so their heads are remembered: as long as HPACK's table does not
change, an equal block means equal headers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from wherry.frontends.grpc import frames
from wherry.frontends.grpc.frames import ConnectionFault
from wherry.frontends.grpc.heads import Head
from wherry.frontends.grpc.hpack import Header, HeaderBomb, HeaderDecoder, HpackError, header_bytes
from wherry.frontends.grpc.work import HEADERS_A_FRAME, ClientWork

REMEMBERED_BYTES: Final = 2**14
"""Bytes of the headers whose heads are remembered."""


class HeadReader:
    """Decodes the header blocks of one connection, each of which it must be given, in order.

    `max_bytes` is for the decoded headers of one block, counted as MAX_HEADER_LIST_SIZE does.
    """

    __slots__ = ("_decoder", "_heads", "_remembered_bytes", "_work", "max_bytes")

    def __init__(self, work: ClientWork, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._work = work
        self._decoder = HeaderDecoder()
        self._heads: dict[bytes, Head] = {}  # by block
        self._remembered_bytes = 0

    @property
    def remembered(self) -> Collection[Head]:
        return self._heads.values()

    def head(self, block: bytes) -> Head:
        """The head of a call. Raises what `headers` and `Head` do."""
        head = self._heads.get(block)
        if head is None:
            version = self._decoder.version
            headers = self.headers(block)
            head = Head(headers)
            if version == self._decoder.version:
                self._remember(block, head, header_bytes(headers))
        return head

    def headers(self, block: bytes) -> list[Header]:
        """The headers of a block. TooManyHeaders above `max_bytes`; ConnectionFault if the block
        cannot be decoded, or is a bomb: no later one can be decoded then."""
        version = self._decoder.version
        try:
            headers = self._decoder.decode(block, self.max_bytes)
            self._work.done += len(headers) // HEADERS_A_FRAME
            return headers
        except HeaderBomb as error:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, str(error)) from None
        except HpackError as error:
            raise ConnectionFault(frames.COMPRESSION_ERROR, str(error)) from None
        finally:
            if version != self._decoder.version:
                self._forget()

    def _remember(self, block: bytes, head: Head, size: int) -> None:
        if self._remembered_bytes + size > REMEMBERED_BYTES:
            self._forget()
        if size <= REMEMBERED_BYTES:
            self._heads[block] = head
            self._remembered_bytes += size

    def _forget(self) -> None:
        self._heads.clear()
        self._remembered_bytes = 0
