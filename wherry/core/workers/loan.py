"""Whose are the sockets of a worker at the moment: the event loop's, or a caller's thread's?"""

from __future__ import annotations

import enum
import threading


class SocketOwner(enum.Enum):
    """The side that may use the sockets."""

    LOOP = enum.auto()
    #: No thread uses them: the first caller that borrows them, or the loop.
    NONE = enum.auto()
    CALLER = enum.auto()


class SocketLoan:
    """Lends what an event loop owns to one thread at a time, until the loop wants it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = SocketOwner.LOOP
        self._wanted = False

    # The loop

    def lend(self) -> None:
        """From now on threads may borrow. The loop owns it."""
        with self._lock:
            self._owner, self._wanted = SocketOwner.NONE, False

    def reclaim(self) -> bool:
        """The loop wants to own it again. False: a thread has it, whose `give_back` says True, or
        has said so."""
        with self._lock:
            self._wanted = True
            if self._owner is not SocketOwner.NONE:
                return False
            self._owner = SocketOwner.LOOP
            return True

    # Any other thread

    def borrow(self) -> bool:
        """Own it, if it is lent and no thread has it."""
        with self._lock:
            if self._owner is not SocketOwner.NONE:
                return False
            self._owner = SocketOwner.CALLER
            return True

    def give_back(self, *, to_loop: bool) -> bool:
        """End what `borrow` began. True: the loop owns it from now on, and must be told so, as it
        wants that, or `to_loop`."""
        with self._lock:
            to_loop = to_loop or self._wanted
            self._owner = SocketOwner.LOOP if to_loop else SocketOwner.NONE
            return to_loop
