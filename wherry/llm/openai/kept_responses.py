"""Which responses are kept, for whom, and for how long?"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: After its last use, in seconds.
KEPT_FOR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A response, and what it answered.

    `response` is its JSON, `input_items` that of its input's items, and `previous` the id of the
    response before it, or "". `owner` is the name of the key that it was asked for with.
    """

    id: str
    response: bytes
    input_items: bytes
    previous: str = ""
    owner: str = ""

    @property
    def nbytes(self) -> int:
        return len(self.response) + len(self.input_items)


class KeptResponses:
    """The turns of all conversations, at most `most_bytes` of JSON; 0: none are kept.

    What was used least recently makes room. One loop uses it.
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_bytes = most_bytes
        self._clock = clock
        #: With the moment of its last use, the oldest first.
        self._turns: OrderedDict[str, tuple[KeptTurn, float]] = OrderedDict()
        self._nbytes = 0

    def __bool__(self) -> bool:
        """Whether any are kept."""
        return self.most_bytes > 0

    def __len__(self) -> int:
        return len(self._turns)

    def keep(self, turn: KeptTurn) -> bool:
        """Keep a turn under an id that is new, if it fits at all, and return whether it does."""
        if fits := turn.nbytes <= self.most_bytes:
            self._turns[turn.id] = turn, self._clock()
            self._nbytes += turn.nbytes
        self._make_room()
        return fits

    def find(self, id: str, owner: str) -> KeptTurn | None:
        """Return the owner's turn, which is used by that."""
        self._make_room()
        turn, _ = self._turns.get(id, (None, 0))
        if turn is None or turn.owner != owner:
            return None
        self._turns[id] = turn, self._clock()
        self._turns.move_to_end(id)
        return turn

    def conversation(self, last: str, owner: str) -> list[KeptTurn] | None:
        """Return the turns up to `last`, the first one first; None if one of them is gone."""
        turns: list[KeptTurn] = []
        while last:
            turn = self.find(last, owner)
            if turn is None:
                return None
            turns.append(turn)
            last = turn.previous
        return turns[::-1]

    def remove(self, id: str) -> None:
        """Forget a turn, if it is there."""
        turn, _ = self._turns.pop(id, (None, 0))
        self._nbytes -= 0 if turn is None else turn.nbytes

    def _make_room(self) -> None:
        over = self._clock() - KEPT_FOR
        while self._turns:
            id, (_, used) = next(iter(self._turns.items()))
            if self._nbytes <= self.most_bytes and used > over:
                return
            self.remove(id)
