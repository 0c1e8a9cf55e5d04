"""How does a transport take several buffers at once, and still say when it is full?

asyncio's own socket transport never calls `pause_writing` for what `writelines` leaves unsent, in
Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 (CVE-2024-12254): answers to a client that does not read
would pile up without a bound. Its `write` does call it, in every version. uvloop's transports and
those of TLS are not concerned.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

_FORGETS: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (
    (3, 13) <= sys.version_info < (3, 13, 2)
)


def gathered_write(
    transport: asyncio.Transport, *, forgets: bool = _FORGETS
) -> Callable[[Sequence[Buffer]], None]:
    """The function that writes buffers to `transport` as one.

    With `forgets`, a transport of asyncio's own gets them joined: one copy more.
    """
    if forgets and type(transport).__module__.startswith("asyncio."):
        return lambda buffers: transport.write(b"".join(buffers))
    return transport.writelines
