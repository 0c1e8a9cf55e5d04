"""In which order does Triton go through names that it keeps in a hash table?

It is C++'s std::unordered_map as GCC's library makes it (hashtable.h, hash_bytes.cc): MurmurHash64A
of the name, a prime number of buckets, and new buckets before the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_SEED: Final = 0xC70F6907
_MUL: Final = 0xC6A4A7935BD1E995
_MASK: Final = 2**64 - 1
#: How many buckets there are, one after the other, as more names come than there were buckets.
_BUCKETS: Final = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753)


def in_order_of_a_hash_table(names: Iterable[str]) -> list[str]:
    """The names, which come in the order in which they were put in, each once. Of tens of thousands
    the rest keeps its order."""
    table: dict[int, list[str]] = {}
    sizes = iter(_BUCKETS)
    size = next(sizes)
    for number, name in enumerate(names, 1):
        if number > size:
            size = next(sizes, size)
            table = _filled(_in_order(table), size)
        _put(table, name, size)
    return _in_order(table)


def _filled(names: Iterable[str], size: int) -> dict[int, list[str]]:
    table: dict[int, list[str]] = {}
    for name in names:
        _put(table, name, size)
    return table


def _put(table: dict[int, list[str]], name: str, size: int) -> None:
    table.setdefault(_hash(name) % size, []).insert(0, name)


def _in_order(table: dict[int, list[str]]) -> list[str]:
    return [name for bucket in reversed(table.values()) for name in bucket]


def _hash(name: str) -> int:
    data = name.encode()
    whole = len(data) & ~7
    found = _SEED ^ (len(data) * _MUL & _MASK)
    for start in range(0, whole, 8):
        part = _shifted(int.from_bytes(data[start : start + 8], "little") * _MUL & _MASK)
        found = (found ^ (part * _MUL & _MASK)) * _MUL & _MASK
    if len(data) > whole:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _MUL & _MASK
    found = _shifted(found) * _MUL & _MASK
    return _shifted(found)


def _shifted(value: int) -> int:
    return value ^ (value >> 47)
