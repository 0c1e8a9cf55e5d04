"""Which blocks of the KV cache hold which tokens, and which can be reused?

A block holds the keys and values of `block_size` tokens. A sequence takes a block when it has
tokens for it. Two further rules:

*Prefix caching.* A full block is identified by its tokens and the blocks before it, exactly (no
hash that could collide). It is kept after its last sequence has ended until its space is needed,
and a sequence with the same prefix uses it.

*Contiguous sequences.* Attention reads consecutive blocks in place; scattered ones must be
concatenated at each step. So a new sequence is placed where it has room to grow, and that room is
reserved for it: other sequences take it only if no other block is free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any

_TAKEN, _FREE, _RESERVED = range(3)

#: The identity of the empty prefix.
ROOT = 0
#: The identity of the block before, or of an empty prefix of one kind, and the tokens.
Content = tuple[int | str, tuple[int, ...]]


@dataclass(slots=True)
class BlockTable:
    #: Blocks that the sequence may need in the end: decides where it is placed.
    expected_blocks: int = 0
    blocks: list[int] = field(default_factory=list)
    #: Number of its leading blocks in the prefix cache, and the identity of the last of them.
    cached_blocks: int = 0
    known_as: int | str = ROOT
    #: Blocks reserved for it: first, stop.
    reserved: tuple[int, int] = (0, 0)
    #: The sequence's state in a model with states of its own, until the table is closed.
    held: Any = None

    @property
    def extents(self) -> list[tuple[int, int]]:
        """Runs of consecutive blocks: (first block, count)."""
        runs: list[tuple[int, int]] = []
        for block in self.blocks:
            if runs and runs[-1][0] + runs[-1][1] == block:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((block, 1))
        return runs


class KVCache:
    """Allocates blocks to sequences. Only the bookkeeping; the tensors belong to Attention.

    Without `shares_prefixes` no sequence uses the blocks of another.
    """

    def __init__(self, blocks: int, block_size: int, *, shares_prefixes: bool = True) -> None:
        self.total_blocks = blocks
        self.block_size = block_size
        self._shares_prefixes = shares_prefixes
        self._state = bytearray([_FREE]) * blocks
        self._users = [0] * blocks
        #: Cached blocks that no sequence uses, least recently used first.
        self._idle: OrderedDict[int, None] = OrderedDict()
        #: For each cached block: the identity of the block before it, and its tokens.
        self._content: dict[int, Content] = {}
        self._by_content: dict[Content, int] = {}
        self._identity: dict[int, int] = {}
        self._identities = ROOT
        self._empty_blocks = blocks
        #: Tokens found in the prefix cache, and tokens looked up.
        self.hit_tokens = 0
        self.looked_up_tokens = 0

    def __repr__(self) -> str:
        return (
            f"<KVCache {self.total_blocks} blocks of {self.block_size}: {self.used_blocks} used,"
            f" {len(self._idle)} kept>"
        )

    @property
    def available_blocks(self) -> int:
        return self._empty_blocks + len(self._idle)

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self.available_blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # Life of a sequence: open, then grow and register with each step, close

    def open(
        self, tokens: Tokens[int], expected_tokens: int, *, reuse: bool = True, kind: str = ""
    ) -> tuple[BlockTable, int]:
        """A block table with the cached prefix of `tokens`, and the length of that prefix in
        tokens.

        At least the last token is left to compute, since its logits are needed. Without `reuse` no
        prefix is used: cached blocks have no log probabilities. Only prefixes of the same `kind`
        are used: the same tokens may have other keys and values, or be another tenant's.
        """
        table = BlockTable(self.blocks_for(max(expected_tokens, len(tokens))))
        table.known_as = kind or ROOT
        most = len(tokens) - self.block_size if reuse and self._shares_prefixes else 0
        for key_start in range(0, most, self.block_size):
            key = (table.known_as, tuple(tokens[key_start : key_start + self.block_size]))
            block = self._by_content.get(key)
            if block is None:
                break
            self._use(block)
            table.blocks.append(block)
            table.cached_blocks += 1
            table.known_as = self._identity[block]
        hit = len(table.blocks) * self.block_size
        self.hit_tokens += hit
        self.looked_up_tokens += len(tokens)
        return table, hit

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Allocate blocks for `tokens` tokens in all. False, without a change, if there are too few
        blocks."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing > self.available_blocks:
            return False
        while missing > 0:
            missing -= self._extend(table, missing) or self._settle(table, missing)
        return True

    def register(self, table: BlockTable, tokens: Tokens[int], computed: int) -> None:
        if not self._shares_prefixes:
            return
        size = self.block_size
        for number in range(table.cached_blocks, computed // size):
            key = (table.known_as, tuple(tokens[number * size : (number + 1) * size]))
            known = self._by_content.get(key)
            if known is None:
                known = table.blocks[number]
                self._by_content[key] = known
                self._content[known] = key
                self._identities += 1
                self._identity[known] = self._identities
            table.cached_blocks += 1
            table.known_as = self._identity[known]

    def close(self, table: BlockTable) -> None:
        """Release the blocks of a sequence that has ended or is preempted. Cached blocks stay until
        their space is needed."""
        for block in range(*table.reserved):
            if self._state[block] == _RESERVED:
                self._state[block] = _FREE
        for block in reversed(table.blocks):  # the end of a prefix is evicted before its beginning
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._content:
                self._idle[block] = None
            else:
                self._state[block] = _FREE
                self._empty_blocks += 1
        table.blocks, table.reserved, table.held = [], (0, 0), None
        table.cached_blocks, table.known_as = 0, ROOT

    def check(self) -> None:
        """Assert the invariants. For tests."""
        assert self._empty_blocks == sum(state != _TAKEN for state in self._state)
        for block in range(self.total_blocks):
            idle = block in self._idle
            assert (self._users[block] > 0 or idle) == (self._state[block] == _TAKEN), block
            assert not (idle and self._users[block]), block
            assert not idle or block in self._content, block
        assert {self._by_content[key] for key in self._by_content} == set(self._content)

    # Parts

    def _use(self, block: int) -> None:
        self._users[block] += 1
        self._idle.pop(block, None)

    def _take(self, table: BlockTable, block: int) -> None:
        if self._state[block] == _TAKEN:
            self._forget(block)
        self._state[block] = _TAKEN
        self._empty_blocks -= 1
        self._users[block] = 1
        table.blocks.append(block)

    def _forget(self, block: int) -> None:
        del self._idle[block]
        del self._by_content[self._content.pop(block)]
        del self._identity[block]
        self._state[block] = _FREE
        self._empty_blocks += 1

    def _extend(self, table: BlockTable, missing: int) -> int:
        """Take free blocks directly after the last one. Returns their number."""
        if not table.blocks:
            return 0
        first = block = table.blocks[-1] + 1
        end = min(first + missing, self.total_blocks)
        mine = range(*table.reserved)
        while block < end and (
            self._state[block] == _FREE or (self._state[block] == _RESERVED and block in mine)
        ):
            self._take(table, block)
            block += 1
        return block - first

    def _settle(self, table: BlockTable, missing: int) -> int:
        """Take blocks at another place, with as much room to grow as possible. Returns their
        number."""
        new_blocks = max(missing, table.expected_blocks - len(table.blocks))
        start = self._room(new_blocks)
        while start < 0 and self._idle and new_blocks <= self.available_blocks:
            self._forget(next(iter(self._idle)))
            start = self._room(new_blocks)
        while start < 0 and new_blocks > missing:
            new_blocks = max(missing, new_blocks // 2)
            start = self._room(new_blocks)
        if start < 0:
            self._take(table, self._any())
            return 1
        for block in range(start, start + missing):
            self._take(table, block)
        reserved = bytes([_RESERVED]) * (new_blocks - missing)
        self._state[start + missing : start + new_blocks] = reserved
        table.reserved = (start + missing, start + new_blocks)
        return missing

    def _room(self, blocks: int) -> int:
        """The start of a run of this many free blocks; -1 if there is none."""
        return self._state.find(bytes([_FREE]) * blocks)

    def _any(self) -> int:
        """One block: a free one, else the least recently used cached one, else a reserved one."""
        if (block := self._state.find(_FREE)) >= 0:
            return block
        if self._idle:
            return next(iter(self._idle))
        return self._state.find(_RESERVED)
