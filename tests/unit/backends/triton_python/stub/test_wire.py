"""Do messages and tensors arrive, and is what is none refused?"""

import ast
import contextlib
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

from wherry.backends.triton_python.stub import wire
from wherry.backends.triton_python.stub.wire import Arena, BadFrame, Channel, Outgoing, SlabViews

STUB = Path(wire.__file__).parent


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("size", [0, 3, wire.INLINE_BYTES // 8 + 1, 100_000])
def test_tensors_of_any_size_arrive(ends: tuple[Channel, Channel], size: int) -> None:
    one, other = ends
    memory = mmap(-1, 1 << 20)
    other.views = SlabViews(memory)
    arrays = [np.arange(size, dtype=np.float64), np.arange(size, 2 * size, dtype=np.float64)]
    out = Outgoing(memory, Arena(0, 1 << 18))  # the largest do not fit
    one.send(["m", [out.put("x", "FP64", [size], array) for array in arrays]], out)
    out.close()
    (kind, tensors), incoming = other.receive()

    assert kind == "m"
    for array, (_, _, _, *where) in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(incoming.get(*where).view(np.float64), array)


def test_small_tensors_may_be_written_to(ends: tuple[Channel, Channel]) -> None:
    out = Outgoing()
    ends[0].send(["m", out.put("x", "INT8", [3], np.zeros(3, np.int8))], out)
    (_, (*_, where, offset, size)), incoming = ends[1].receive()

    incoming.get(where, offset, size)[:] = 7


def test_a_message_is_not_sent_now_if_there_is_no_room_for_it() -> None:
    end, other = socket.socketpair()
    end.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            end.send(bytes(1 << 16))
    channel = Channel(end)

    assert not channel.send_now(["m", 0], Outgoing())
    assert not channel.unsent
    channel.close()
    other.close()


def test_a_message_with_a_memory_file_is_not_sent_now(ends: tuple[Channel, Channel]) -> None:
    out = Outgoing()
    out.put("x", "UINT8", [9000], np.zeros(9000, np.uint8))

    assert not ends[0].send_now(["m", 0], out)
    out.close()
    assert not ends[1].readable()


def test_the_rest_of_a_message_goes_before_all_that_comes_after_it() -> None:
    import threading

    end, other = socket.socketpair()
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as small as it may be
    poll = select.poll()
    poll.register(end, select.POLLOUT)
    sender, receiver = Channel(end, lambda _: list(poll.poll()).clear()), Channel(other)
    text = "x" * 100_000
    assert sender.send_now(["first", text], Outgoing())
    assert sender.unsent

    thread = threading.Thread(target=sender.send, args=[["second"]])
    thread.start()
    assert receiver.receive()[0] == ["first", text]
    assert receiver.receive()[0] == ["second"]
    thread.join()
    sender.close()
    receiver.close()


def test_many_messages_of_all_sizes_keep_their_order(ends: tuple[Channel, Channel]) -> None:
    import threading

    sizes = [0, 10, 70_000, 1, 200_000, 65_530, 3]

    def send() -> None:
        for size in sizes:
            ends[0].send(["m", "x" * size])

    thread = threading.Thread(target=send)
    thread.start()
    for size in sizes:
        message, _ = ends[1].receive()
        assert len(message[1]) == size
    thread.join()


def test_only_what_came_of_a_batch_is_received_without_waiting() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    sender, receiver = Channel(theirs), Channel(ours)

    assert receiver.receive_executed() is None
    sender.send(["executed", 1])
    assert receiver.receive_executed()[0] == ["executed", 1]  # type: ignore[index]
    for other in (["response", 2], ["executed", 3]):
        sender.send(other)
    assert receiver.receive_executed() is None
    assert receiver.receive()[0] == ["response", 2]
    assert receiver.receive_executed()[0] == ["executed", 3]  # type: ignore[index]
    sender.close()
    receiver.close()


@pytest.mark.parametrize("rest", [1, 12 + 7, 3000])
def test_half_of_what_came_of_a_batch_is_left_until_the_rest_is_here(rest: int) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    receiver = Channel(ours)
    message = ["executed", "x" * 4000]
    data, _ = wire._framed(message, None)

    theirs.send(data[:-rest])
    assert receiver.receive_executed() is None
    theirs.send(data[-rest:])
    assert receiver.receive_executed()[0] == message  # type: ignore[index]
    theirs.close()
    with pytest.raises(EOFError):
        receiver.receive_executed()
    receiver.close()


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


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 40,
        wire._HEADER.pack(4, 0, 0, wire._MARK) + b"{no}",
        wire._HEADER.pack(2, 0, 0, wire._MARK) + b"{}",
        wire._HEADER.pack(2, 0, 0, wire._MARK) + b"[]",
        wire._HEADER.pack(0xFFFFFFFF, 0, 0, wire._MARK),
        wire._HEADER.pack(4, 0xFFFFFFFF, 0, wire._MARK) + b"null",
        wire._HEADER.pack(7, 0, wire._HAS_FILE, wire._MARK) + b'["a",0]',
    ],
)
def test_garbage_is_refused(ends: tuple[Channel, Channel], data: bytes) -> None:
    os.write(ends[0].fileno(), data)

    with pytest.raises(BadFrame):
        ends[1].receive()


@pytest.mark.parametrize(
    "where", [(wire.INLINE, 0, 10), (wire.IN_SLAB, 0, 10), (wire.IN_FILE, 0, 10)]
)
def test_a_tensor_outside_of_its_message_is_garbage(
    ends: tuple[Channel, Channel], where: tuple[int, int, int]
) -> None:
    ends[0].send(["m"])
    _, incoming = ends[1].receive()

    with pytest.raises(BadFrame):
        incoming.get(*where)


def test_the_end_of_the_other_process_is_an_end_of_file(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()


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
