"""How are header blocks decoded and encoded? (HPACK, RFC 7541)

Requests are decoded in full: both tables, Huffman, size updates. Responses are encoded literally
only (`literal`), so that none depends on the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import Final

Header = tuple[bytes, bytes]

_STATIC: Final = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|"
    ":scheme=https|:status=200|:status=204|:status=206|:status=304|:status=400|:status=404|"
    ":status=500|accept-charset|accept-encoding=gzip, deflate|accept-language|accept-ranges|"
    "accept|access-control-allow-origin|age|allow|authorization|cache-control|"
    "content-disposition|content-encoding|content-language|content-length|content-location|"
    "content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|"
    "if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|"
    "location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|"
    "retry-after|server|set-cookie|strict-transport-security|transfer-encoding|user-agent|"
    "vary|via|www-authenticate"
)
STATIC: Final = tuple(
    (name.encode(), value.encode())
    for name, _, value in (entry.partition("=") for entry in _STATIC.split("|"))
)
"""The static table; its first entry has index 1."""

HUFFMAN_LENGTHS: Final = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6ca"
    "d67777777777777777777777878djde6f56565666577666567655677777fbeds"
    "kmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmn"
    "qqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrq"
    "u"
)
"""Of each byte's code, and of the end's, as digits to base 32. The codes follow from them: they
count up, from the shortest to the longest."""

ENTRY_BYTES: Final = 32
"""What an entry counts for in a table, besides its name and value."""

MAX_SIZE_UPDATES: Final = 2
"""Updates of a table's size in one block: RFC 7541, 4.2 has no use for more."""


class HpackError(ValueError):
    """The block cannot be decoded, and thus no later one of this connection."""


class HeaderBomb(HpackError):
    """The block unfolds to more than twice what was allowed: the rest of it was not read."""


class TooManyHeaders(ValueError):
    """A block of more than was allowed. It was read to its end: the connection can go on."""

    def __init__(self, size: int) -> None:
        super().__init__(f"headers of {size} bytes")
        self.size = size


class HeaderDecoder:
    def __init__(self, max_table_bytes: int = 4096) -> None:
        self._entries: deque[Header] = deque()  # the newest first
        self._table_bytes = 0
        self._limit = self._max_table_bytes = max_table_bytes
        #: Counts up whenever the table changes: until then, equal blocks mean equal headers.
        self.version = 0

    def __repr__(self) -> str:
        return f"<HeaderDecoder: {len(self._entries)} entries, {self._table_bytes} bytes>"

    def decode(self, block: bytes, max_bytes: int) -> list[Header]:
        """Decode a block. HpackError, or TooManyHeaders if they count for more than `max_bytes`.

        They count as in SETTINGS_MAX_HEADER_LIST_SIZE: name, value and 32 bytes each. What is
        beyond the limit is not kept: one byte of a block may stand for a whole table.
        """
        headers: list[Header] = []
        position, end = 0, len(block)
        size = updates = 0
        try:
            while position < end:
                first = block[position]
                if first & 0x80:
                    index, position = _integer(block, position, 0x7F)
                    header = self._entry(index)
                elif first & 0x40:
                    header, position = self._literal(block, position, 0x3F)
                    self._add(header)
                elif first & 0x20:
                    updates += 1
                    if size or updates > MAX_SIZE_UPDATES:
                        raise HpackError("a table size update too many, or behind a header")
                    limit, position = _integer(block, position, 0x1F)
                    self._resize(limit)
                    continue
                else:  # without indexing, or never indexed
                    header, position = self._literal(block, position, 0x0F)
                size += len(header[0]) + len(header[1]) + ENTRY_BYTES
                if size <= max_bytes:
                    headers.append(header)
                elif size > 2 * max_bytes:
                    raise HeaderBomb(f"headers of more than {2 * max_bytes} bytes")
        except IndexError:
            raise HpackError("the header block is cut off") from None
        if size > max_bytes:
            raise TooManyHeaders(size)
        return headers

    def _literal(self, block: bytes, position: int, mask: int) -> tuple[Header, int]:
        index, position = _integer(block, position, mask)
        if index:
            name = self._entry(index)[0]
        else:
            name, position = _string(block, position)
        value, position = _string(block, position)
        return (name, value), position

    def _entry(self, index: int) -> Header:
        if 0 < index <= len(STATIC):
            return STATIC[index - 1]
        index -= len(STATIC) + 1
        if not 0 <= index < len(self._entries):
            raise HpackError("an index that no table has")
        return self._entries[index]

    def _add(self, header: Header) -> None:
        self._entries.appendleft(header)
        self._table_bytes += _size(header)
        self._evict()

    def _resize(self, limit: int) -> None:
        if limit > self._max_table_bytes:
            raise HpackError(f"a table of {limit} bytes, of at most {self._max_table_bytes}")
        self._limit = limit
        self._evict()

    def _evict(self) -> None:
        self.version += 1
        while self._table_bytes > self._limit:
            self._table_bytes -= _size(self._entries.pop())


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + _packed(name) + _packed(value)


def _packed(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    head = bytearray((0x7F,))
    length -= 0x7F
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + text


def header_bytes(headers: Iterable[Header]) -> int:
    """The size of the headers, as in a table and in SETTINGS_MAX_HEADER_LIST_SIZE."""
    return sum(map(_size, headers))


def _size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + ENTRY_BYTES


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """A number whose first bits are those of `mask`, and the position behind it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for shift in range(0, 28, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise HpackError("a number that is too large")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    coded = block[position] & 0x80
    length, position = _integer(block, position, 0x7F)
    text = block[position : position + length]
    if len(text) < length:
        raise HpackError("the header block is cut off")
    return (huffman_decoded(text) if coded else text), position + length


def huffman_decoded(data: bytes) -> bytes:
    steps, ends = _huffman_machine()
    text = bytearray()
    state = 0
    for byte in data:
        for half in (byte >> 4, byte & 15):
            state, symbol = steps[state][half]
            if symbol >= 0:
                text.append(symbol)
            elif state < 0:
                raise HpackError("no Huffman code")
    if state not in ends:
        raise HpackError("a Huffman text that does not end in ones")
    return bytes(text)


@cache
def _huffman_machine() -> tuple[list[list[tuple[int, int]]], frozenset[int]]:
    """By state and next four bits: the next state, and the byte that is complete or -1.

    Beside it the states in which a text may end: up to seven ones behind its last byte.
    """
    lengths = [int(digit, 32) for digit in HUFFMAN_LENGTHS]
    # A node is two branches; a branch is a node's number, or a leaf: -1 - symbol.
    nodes: list[list[int | None]] = [[None, None]]
    code = previous = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - previous
        previous = length
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            branch = nodes[node][bit]
            if branch is None:
                branch = nodes[node][bit] = len(nodes)
                nodes.append([None, None])
            node = branch
        nodes[node][code & 1] = -1 - symbol
        code += 1
    steps = [[_step(nodes, node, half) for half in range(16)] for node in range(len(nodes))]
    ends, node = [0], 0
    for _ in range(7):
        node = nodes[node][1] or 0
        ends.append(node)
    return steps, frozenset(ends)


def _step(nodes: list[list[int | None]], node: int, half: int) -> tuple[int, int]:
    symbol = -1
    for shift in (3, 2, 1, 0):
        branch = nodes[node][half >> shift & 1]
        if branch is None or branch == -1 - 256:
            return -1, -1  # the end's own code may not be sent
        if branch < 0:
            symbol = -1 - branch
            node = 0
        else:
            node = branch
    return node, symbol
