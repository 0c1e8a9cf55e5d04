"""Where do the bytes of large bodies go, without fresh memory for each?"""

import numpy as np

from wherry.server.connections.kept_buffers import KEPT_BYTES, LARGEST_BYTES, KeptBuffers

LENGTH = 600_000


def place(buffer: memoryview) -> int:
    """Where a buffer lies in memory."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def test_a_buffer_that_nothing_refers_to_is_given_again() -> None:
    buffers = KeptBuffers()
    first = buffers.take(LENGTH)
    where = place(first)
    del first
    again = buffers.take(LENGTH - 1000)
    assert place(again) == where
    assert len(again) == LENGTH - 1000
    assert not again.readonly


def test_a_buffer_is_not_given_again_while_anything_refers_to_it() -> None:
    buffers = KeptBuffers()
    whole = buffers.take(LENGTH)
    part, array = whole[10:20], np.frombuffer(whole, np.float32)[5:]
    where = place(whole)
    del whole
    assert place(buffers.take(LENGTH)) != where
    del part
    assert place(buffers.take(LENGTH)) != where
    del array
    taken = [buffers.take(LENGTH) for _ in range(2)]
    assert where in {place(one) for one in taken}


def test_a_small_body_does_not_get_a_large_buffer() -> None:
    buffers = KeptBuffers()
    where = place(buffers.take(LENGTH))
    assert place(buffers.take(LENGTH // 3)) != where


def test_no_more_is_kept_than_the_bounds() -> None:
    buffers = KeptBuffers()
    held = [buffers.take(LENGTH) for _ in range(KEPT_BYTES // LENGTH + 10)]
    held.append(buffers.take(LARGEST_BYTES + 1))
    assert buffers._bytes <= KEPT_BYTES
    assert sum(buffer.nbytes for buffer in buffers._buffers) == buffers._bytes


def test_what_was_not_taken_between_two_trims_is_given_back() -> None:
    buffers = KeptBuffers()
    held = [buffers.take(LENGTH) for _ in range(3)]
    buffers.trim()
    assert "3 of" in repr(buffers)
    del held
    buffers.take(LENGTH)
    buffers.trim()
    assert "1 of" in repr(buffers)
    buffers.trim()
    assert "0 of 0 bytes" in repr(buffers)
