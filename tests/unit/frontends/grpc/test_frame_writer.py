"""frontends/grpc/frame_writer.py: small frames leave together, and nothing behind the end."""

import asyncio
from collections.abc import Iterable

from wherry.frontends.grpc.frame_writer import CORKED_BYTES, FrameWriter


class Kernel(asyncio.Transport):
    """A transport that writes down what it is told. Without `eof` it cannot close one half."""

    def __init__(self, *, eof: bool = True) -> None:
        super().__init__()
        self.told: list[object] = []
        self.eof = eof

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.told.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return self.eof

    def write_eof(self) -> None:
        self.told.append("eof")

    def close(self) -> None:
        self.told.append("close")


def test_what_is_written_while_corked_leaves_in_one_piece() -> None:
    kernel = Kernel()
    writer = FrameWriter(kernel)
    writer.write(b"1")
    writer.corked = True
    writer.write(b"2")
    writer.write(b"3")
    assert kernel.told == [b"1"]
    writer.uncork()
    assert kernel.told == [b"1", b"23"]
    assert writer.written == 3


def test_no_more_than_so_much_is_held_back() -> None:
    kernel = Kernel()
    writer = FrameWriter(kernel)
    writer.corked = True
    for _ in range(3):
        writer.write(bytes(CORKED_BYTES // 2))
    assert kernel.told == [bytes(CORKED_BYTES)]


def test_the_end_comes_behind_what_was_held_back_and_nothing_behind_it() -> None:
    for eof, end in ((True, "eof"), (False, "close")):
        kernel = Kernel(eof=eof)
        writer = FrameWriter(kernel)
        writer.corked = True
        writer.write(b"the last")
        writer.finish()
        writer.finish()
        writer.write(b"too late")
        writer.write_buffers([b"too", b"late"])
        writer.uncork()
        assert kernel.told == [b"the last", end]
        assert writer.written == 8
