"""Do messages and tensors arrive, and is what is none refused?"""

import ast
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.workers.encoding import Garbage
from wherry.core.workers.message_socket import FrameSocket
from wherry.triton.python.process import Plain, StubDecoder, StubEncoder, StubMemory
from wherry.triton.python.stub import wire
from wherry.triton.python.stub.wire import (
    Arena,
    BadFrame,
    Channel,
    Incoming,
    Outgoing,
    SlabViews,
)

STUB = Path(wire.__file__).parent


class Ends:
    """Both ends of a connection, with 1 MiB of shared memory."""

    def __init__(self) -> None:
        memory_fd = wire.memory_file("test", wire.SLAB_BYTES)
        self.memory = StubMemory(memory_fd)
        self.stub_memory = mmap(memory_fd, wire.SLAB_BYTES)
        os.close(memory_fd)
        to_stub, stub_source = socket.socketpair()
        source, to_server = socket.socketpair()
        for end in (source, to_stub):
            end.setblocking(False)
        self.to_stub, self.to_server = to_stub, to_server
        encoder, decoder = StubEncoder(self.memory), StubDecoder(self.memory.views)
        self.server = FrameSocket(source, to_stub, encoder, decoder, wait=self._wait)
        self.stub = Channel(stub_source, to_server)
        self.stub.views = SlabViews(self.stub_memory)
        self.stub_source = stub_source

    def _wait(self, file: int, events: int) -> None:
        poll = select.poll()
        poll.register(file, events)
        poll.poll()

    def received(self) -> Any:
        """The one message that has come to the stub."""
        (one,) = self.stub.receive()
        return one

    def close(self) -> None:
        self.server.close()
        self.stub_source.close()
        self.to_server.close()
        assert self.stub.views is not None
        self.stub.views.close()
        self.stub_memory.close()
        self.memory.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


class Tensors:
    """A message with these arrays."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays

    def build(self, out: Outgoing) -> list[Any]:
        return ["m", [out.put("x", "FP64", list(a.shape), a) for a in self.arrays]]


@pytest.mark.parametrize("size", [0, 3, wire.INLINE_BYTES // 8 + 1, 100_000, 9_000_000])
def test_tensors_of_any_size_arrive_in_the_stub(ends: Ends, size: int) -> None:
    arrays = [np.arange(size, dtype=np.float64), np.arange(size, 2 * size, dtype=np.float64)]
    ends.server.send(Tensors(*arrays))
    (kind, released, tensors), incoming = ends.received()

    assert (kind, released) == ("m", [])
    for array, (_, _, _, *where) in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(incoming.get(*where).view(np.float64), array)


@pytest.mark.parametrize("size", [0, 3, wire.INLINE_BYTES // 8 + 1, 100_000, 9_000_000])
def test_tensors_of_any_size_arrive_in_the_server(ends: Ends, size: int) -> None:
    arrays = [np.arange(size, dtype=np.float64), np.arange(size, 2 * size, dtype=np.float64)]
    out = Outgoing(ends.stub_memory, Arena(wire.SLAB_BYTES // 2, wire.SLAB_BYTES))
    message = Tensors(*arrays).build(out)
    ends.stub.send(message, out)
    out.close()
    got: list[Any] = []

    def keep(message: list[Any], incoming: Incoming) -> list[Any]:
        got.extend(incoming.get(*where).copy() for _, _, _, *where in message[1])
        return message

    decoder: Any = ends.server._decoder
    decoder.prepare = keep
    assert ends.server.receive()[0] == "m"
    for array, bytes_ in zip(arrays, got, strict=True):
        np.testing.assert_array_equal(bytes_.view(np.float64), array)


def test_the_stub_is_told_what_was_released_with_the_next_message(ends: Ends) -> None:
    ends.memory.views.array(64, 100).copy()
    ends.server.send(Plain(["m"]))

    assert ends.received()[0] == ["m", [64]]


def test_a_message_that_cannot_be_sent_leaves_all_as_it_was(ends: Ends) -> None:
    class Broken:
        def build(self, out: Outgoing) -> list[Any]:
            out.put("x", "UINT8", [9000], np.zeros(9000, np.uint8))
            return ["m", object()]

    ends.memory.views.array(64, 100).copy()
    with pytest.raises(TypeError):
        ends.server.send(Broken())
    assert ends.memory.outgoing().put("x", "UINT8", [9000], bytes(9000))[4] == 0

    ends.server.send(Plain(["m"]))
    assert ends.received()[0] == ["m", [64]]


def test_small_tensors_may_be_written_to(ends: Ends) -> None:
    ends.server.send(Tensors(np.zeros(3, np.int8)))
    (_, _, [(*_, where, offset, size)]), incoming = ends.received()

    incoming.get(where, offset, size)[:] = 7


def test_many_messages_of_all_sizes_keep_their_order(ends: Ends) -> None:
    import threading

    sizes = [0, 10, 70_000, 1, 200_000, 65_530, 3]

    def send() -> None:
        for size in sizes:
            ends.server.send(Plain(["m", "x" * size]))

    thread = threading.Thread(target=send)
    thread.start()
    received: list[int] = []
    while len(received) < len(sizes):
        received += [len(message[2]) for message, _ in ends.stub.receive()]
    thread.join()
    assert received == sizes


def test_a_block_goes_into_the_first_gap() -> None:
    arena = Arena(0, 1000)
    assert [arena.take(size) for size in (100, 200, 100)] == [0, 128, 384]
    arena.release(128)
    assert arena.take(300) == 512  # it does not fit into the gap
    assert arena.take(190) == 128
    for offset in (0, 384, 512, 77, 384):  # an offset of no block says nothing
        arena.release(offset)
    assert arena.take(700) is None
    arena.release(128)
    assert arena.take(1000) == 0


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 9))))
def test_blocks_in_use_never_overlap(steps: list[tuple[int, int]]) -> None:
    arena = Arena(64, 2048)
    used: dict[int, int] = {}
    for size, release in steps:
        if release < len(used):
            offset = list(used)[release]
            del used[offset]
            arena.release(offset)
        offset_taken = arena.take(size)
        if offset_taken is not None:
            used[offset_taken] = offset_taken + size
        ordered = sorted(used.items())
        assert all(begin >= 64 and end <= 2048 for begin, end in ordered)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ordered))


def test_so_many_blocks_are_in_use_at_most() -> None:
    arena = Arena(0, 1 << 20)
    offsets = [arena.take(8) for _ in range(wire.MAX_BLOCKS)]
    assert None not in offsets
    assert arena.take(8) is None
    arena.release(64)
    assert arena.take(8) == 64


def test_a_tensor_in_the_slab_is_released_with_its_last_array() -> None:
    memory = mmap(-1, 4096)
    memory[128:132] = b"abcd"
    views = SlabViews(memory)
    array = views.array(128, 4)
    reshaped = array.reshape(2, 2)
    del array
    assert views.take_released() == []
    assert reshaped.tobytes() == b"abcd"
    del reshaped
    assert views.take_released() == [128]
    assert views.take_released() == []


def test_when_too_many_tensors_in_the_slab_are_held_others_are_copied() -> None:
    memory = mmap(-1, 4096)
    views = SlabViews(memory, most=1)
    held, copied = views.array(0, 4), views.array(64, 4)
    memory[0:4] = memory[64:68] = b"abcd"

    assert (held.tobytes(), copied.tobytes()) == (b"abcd", bytes(4))
    assert views.take_released() == [64]


@pytest.mark.parametrize(("offset", "size"), [(4090, 10), (-1, 1), (0, 5000), (5000, 1)])
def test_what_does_not_lie_in_the_slab_is_garbage(offset: int, size: int) -> None:
    with pytest.raises(BadFrame):
        SlabViews(mmap(-1, 4096)).array(offset, size)


HEADER = wire._HEADER.pack


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 40,
        HEADER(8, 0, 0, wire._MARK) + b"\4\0\0\0{no}",
        HEADER(6, 0, 0, wire._MARK) + b"\2\0\0\0{}",
        HEADER(6, 0, 0, wire._MARK) + b"\2\0\0\0[]",
        HEADER(3, 0, 0, wire._MARK) + b"\2\0\0",
        HEADER(0xFFFFFFFF, 0, 0, wire._MARK),
        HEADER(11, 0, wire._HAS_FILE, wire._MARK) + b'\7\0\0\0["a",0]',
    ],
)
def test_garbage_is_refused(ends: Ends, data: bytes) -> None:
    ends.to_server.send(data)
    with pytest.raises(Garbage):
        ends.server.receive()

    ends.to_stub.send(data)
    with pytest.raises(BadFrame):
        ends.stub.receive()


@pytest.mark.parametrize(
    "where", [(wire.INLINE, 0, 10), (wire.IN_SLAB, wire.SLAB_BYTES, 10), (wire.IN_FILE, 0, 10)]
)
def test_a_tensor_outside_of_its_message_is_garbage(
    ends: Ends, where: tuple[int, int, int]
) -> None:
    ends.server.send(Plain(["m"]))
    _, incoming = ends.received()

    with pytest.raises(BadFrame):
        incoming.get(*where)


def test_the_end_of_the_other_process_is_an_end_of_file(ends: Ends) -> None:
    ends.to_stub.close()
    with pytest.raises(EOFError):
        ends.stub.receive()


def test_elements_are_packed_with_their_lengths() -> None:
    elements = [b"", b"a", b"\0" * 300]

    assert wire.unpack_elements(wire.pack_elements(elements)) == elements
    for cut in (b"\1\0", b"\5\0\0\0abc"):
        with pytest.raises(ValueError, match="ends within"):
            wire.unpack_elements(cut)


@pytest.mark.parametrize("file", sorted(STUB.glob("*.py")), ids=lambda file: file.name)
def test_what_runs_in_a_worker_is_python_3_8_without_wherry(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(str(node.module).partition(".")[0])

    assert modules <= {*sys.stdlib_module_names, "numpy", "msgspec"}


def test_without_msgspec_the_same_is_said_by_json() -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None\n"
        f"sys.path.insert(0, {str(STUB.parent)!r})\n"
        "from stub import wire\n"
        "message = ['a', 1, None, [1.5, '\\u00e9', True]]\n"
        "assert wire.decode_head(memoryview(wire.encode_head(message))) == message\n"
        "print(wire.encode_head(message).decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    said: Any = wire.decode_head(done.encode())

    assert said == ["a", 1, None, [1.5, "\u00e9", True]]
