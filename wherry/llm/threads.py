"""Do all threads share the work of a call, or is it too little for that?

To hand work out and to wait for its end takes torch's threads some 10 to 50 microseconds: what is
done sooner than that is done by one of them.
"""

from __future__ import annotations

import torch


class Threads:
    """Those that torch has when this is made: all of them for a call, or the calling one alone.

    The number is torch's for the calling thread, and for those that first use torch meanwhile: one
    more reason for a process of its own.
    """

    def __init__(self) -> None:
        self._all = self._now = torch.get_num_threads()

    def use(self, *, alone: bool = False) -> None:
        """Use one thread (`alone`) or all, from the next call on; all again before you return."""
        wanted = 1 if alone else self._all
        if wanted != self._now:
            torch.set_num_threads(wanted)
            self._now = wanted
