"""How many of torch's threads should a call use?

Handing work to torch's threads and waiting for them costs 10 to 50 microseconds. A call that takes
less time than that is faster on one thread.
"""

from __future__ import annotations

import torch


class Threads:
    """Switches torch between one thread and the number it had when this object was made.

    torch keeps the number per calling thread, and threads that first use torch later inherit it.
    This is one more reason to run a model in a process of its own.
    """

    def __init__(self) -> None:
        self._all = self._now = torch.get_num_threads()

    def use(self, *, alone: bool = False) -> None:
        """Use one thread (`alone`) or all, from the next torch call on. The caller must switch back
        to all before it returns."""
        wanted = 1 if alone else self._all
        if wanted != self._now:
            torch.set_num_threads(wanted)
            self._now = wanted
