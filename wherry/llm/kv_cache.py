"""Which blocks of the key-value cache hold which tokens, and what of it can be used again?

A block holds the keys and values of `block_size` tokens. Blocks are counted, not reserved: a
sequence takes one when it has tokens for it. Two further rules:

*A prefix is computed once.* A full block is known by its tokens and the blocks before it, exactly
(no hash that could collide). It stays after its last sequence has gone, until its room is needed;
a sequence with the same tokens takes it as it is.

*A sequence lies in one piece, if it can.* Consecutive blocks can be read by the attention where
they lie, scattered ones must be copied together at each step. So a new sequence is put where it
has room to grow, and that room is promised to it: others take it only if there is nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

_TAKEN, _FREE, _PROMISED = range(3)

#: The identity of what stands before the first block.
ROOT = 0


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence, in the order of its tokens."""

    #: How many blocks the sequence may come to need: where to put it depends on that.
    expected_blocks: int = 0
    blocks: list[int] = field(default_factory=list)
    #: Its leading blocks that are known by their tokens, and the identity of the last of them.
    known_blocks: int = 0
    known_as: int = ROOT
    #: Blocks kept free for it: from, to.
    promise: tuple[int, int] = (0, 0)

    @property
    def extents(self) -> list[tuple[int, int]]:
        """Runs of consecutive blocks: first block, how many."""
        runs: list[tuple[int, int]] = []
        for block in self.blocks:
            if runs and runs[-1][0] + runs[-1][1] == block:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((block, 1))
        return runs


class KVCache:
    """Which sequence has which block. Pure bookkeeping: the tensors are the runner's."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.total_blocks = blocks
        self.block_size = block_size
        self._state = bytearray([_FREE]) * blocks
        self._users = [0] * blocks
        #: Known blocks without a sequence; the one left longest ago goes first.
        self._idle: OrderedDict[int, None] = OrderedDict()
        #: The tokens of each known block after which other known block.
        self._content: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._by_content: dict[tuple[int, tuple[int, ...]], int] = {}
        self._identity: dict[int, int] = {}
        self._identities = ROOT
        self._empty_blocks = blocks
        #: Tokens that prefixes have saved, and tokens that were looked up.
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

    # A sequence's way: open, grow and learn with each step, close

    def open(
        self, tokens: Tokens[int], expected_tokens: int, *, reuse: bool = True
    ) -> tuple[BlockTable, int]:
        """A table with the known blocks that `tokens` begin with, and how many tokens they hold.

        At least the last token is left to compute: what follows it is the question. Without
        `reuse` all of them are: a block does not say how probable its tokens were.
        """
        table = BlockTable(self.blocks_for(max(expected_tokens, len(tokens))))
        most = len(tokens) - self.block_size if reuse else 0
        for key_start in range(0, most, self.block_size):
            key = (table.known_as, tuple(tokens[key_start : key_start + self.block_size]))
            block = self._by_content.get(key)
            if block is None:
                break
            self._use(block)
            table.blocks.append(block)
            table.known_blocks += 1
            table.known_as = self._identity[block]
        hit = len(table.blocks) * self.block_size
        self.hit_tokens += hit
        self.looked_up_tokens += len(tokens)
        return table, hit

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Have blocks for so many tokens; False, and nothing has changed, if there are too few."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing > self.available_blocks:
            return False
        while missing > 0:
            missing -= self._extend(table, missing) or self._settle(table, missing)
        return True

    def learn(self, table: BlockTable, tokens: Tokens[int], computed: int) -> None:
        """The first `computed` of its tokens are in the cache: from now on others may use them."""
        size = self.block_size
        for number in range(table.known_blocks, computed // size):
            key = (table.known_as, tuple(tokens[number * size : (number + 1) * size]))
            known = self._by_content.get(key)
            if known is None:
                known = table.blocks[number]
                self._by_content[key] = known
                self._content[known] = key
                self._identities += 1
                self._identity[known] = self._identities
            table.known_blocks += 1
            table.known_as = self._identity[known]

    def close(self, table: BlockTable) -> None:
        """The sequence has ended or is put back: its known blocks are kept while there is room."""
        for block in range(*table.promise):
            if self._state[block] == _PROMISED:
                self._state[block] = _FREE
        for block in reversed(table.blocks):  # the end of a prefix is of less use than its start
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._content:
                self._idle[block] = None
            else:
                self._state[block] = _FREE
                self._empty_blocks += 1
        table.blocks, table.promise = [], (0, 0)
        table.known_blocks, table.known_as = 0, ROOT

    def check(self) -> None:
        """State the invariants: for tests."""
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
        """Empty an idle block."""
        del self._idle[block]
        del self._by_content[self._content.pop(block)]
        del self._identity[block]
        self._state[block] = _FREE
        self._empty_blocks += 1

    def _extend(self, table: BlockTable, missing: int) -> int:
        """Go on right behind the last block, as far as that is free; how many were taken."""
        if not table.blocks:
            return 0
        first = block = table.blocks[-1] + 1
        end = min(first + missing, self.total_blocks)
        mine = range(*table.promise)
        while block < end and (
            self._state[block] == _FREE or (self._state[block] == _PROMISED and block in mine)
        ):
            self._take(table, block)
            block += 1
        return block - first

    def _settle(self, table: BlockTable, missing: int) -> int:
        """Take blocks somewhere else: where most of what may still come has room."""
        wanted = max(missing, table.expected_blocks - len(table.blocks))
        start = self._room(wanted)
        while start < 0 and self._idle and wanted <= self.available_blocks:
            self._forget(next(iter(self._idle)))
            start = self._room(wanted)
        while start < 0 and wanted > missing:
            wanted = max(missing, wanted // 2)
            start = self._room(wanted)
        if start < 0:
            self._take(table, self._any())
            return 1
        for block in range(start, start + missing):
            self._take(table, block)
        promised = bytes([_PROMISED]) * (wanted - missing)
        self._state[start + missing : start + wanted] = promised
        table.promise = (start + missing, start + wanted)
        return missing

    def _room(self, blocks: int) -> int:
        """Where so many free blocks lie in a row; -1: nowhere."""
        return self._state.find(bytes([_FREE]) * blocks)

    def _any(self) -> int:
        """One block: free, or kept longest, or promised to a sequence."""
        if (block := self._state.find(_FREE)) >= 0:
            return block
        if self._idle:
            return next(iter(self._idle))
        return self._state.find(_PROMISED)
