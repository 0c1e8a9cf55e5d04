"""How is a Runtime told that it is a copy in a forked child?

A fork copies memory but no threads: in the child nothing runs the models, and the workers' sockets
belong to the parent. So the copy is told, and refuses to be used.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that is told, in the child, that it is a copy."""

    def forked(self, parent: int) -> None: ...


#: Module state, since a fork concerns the whole process and os.register_at_fork has no inverse.
_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(one: Forkable) -> None:
    """Call `one.forked(parent's process id)` in each child that is forked from now on."""
    _watched.add(one)


def _in_the_child() -> None:
    for one in tuple(_watched):
        one.forked(os.getppid())


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_in_the_child)
