import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.core.workers import encoding, shared_memory
from wherry.core.workers.encoding import (
    HAS_FILE,
    UNSENDABLE,
    Garbage,
    MessageDecoder,
    MessageEncoder,
    gathered,
    why_not_sent,
)
from wherry.core.workers.message_socket import MessageSocket
from wherry.core.workers.shared_memory import ALIGNMENT, Region, Slab, memory_file


class Cargo(msgspec.Struct, array_like=True, tag=True):
    columns: dict[str, Any]


class Pair:
    """Both ends of a connection, with a slab that is small enough to be full."""

    def __init__(self, slab_bytes: int = 1 << 20) -> None:
        self.to_the_worker, worker_source = socket.socketpair()
        parent_source, self.to_the_parent = socket.socketpair()
        file = memory_file("test", slab_bytes)
        self.slabs = [Slab.open(file), Slab.open(file)]
        os.close(file)
        self.to_the_worker.setblocking(False)
        parent_source.setblocking(False)
        self.parent = MessageSocket(
            parent_source, self.to_the_worker, Cargo, copies=True, wait=self._wait
        )
        self.worker = MessageSocket(worker_source, self.to_the_parent, Cargo, copies=False)
        self.parent.use(self.slabs[0], self.slabs[0].inputs)
        self.worker.use(self.slabs[1], self.slabs[1].outputs)

    def _wait(self, file: int, events: int) -> None:
        poll = select.poll()
        poll.register(file, events)
        poll.poll()

    def to_worker(self, **columns: Any) -> dict[str, Any]:
        return self._across(self.parent, self.worker, columns)

    def to_parent(self, **columns: Any) -> dict[str, Any]:
        return self._across(self.worker, self.parent, columns)

    def _across(
        self, sender: MessageSocket, receiver: MessageSocket, columns: dict[str, Any]
    ) -> dict[str, Any]:
        # In a thread: what is larger than the socket's buffer waits for the other end.
        thread = threading.Thread(target=sender.send, args=[Cargo(columns)], kwargs={"slab": True})
        thread.start()
        received: Cargo = receiver.receive()
        thread.join()
        return received.columns

    def close(self) -> None:
        self.parent.close()
        self.worker.close()
        for slab in self.slabs:
            slab.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_lists_keep_the_types_of_their_rows(pair: Pair) -> None:
    rows = ["text", b"bytes", None, 1, -(2**63), 1.5, True, [1, "a"], {"a": {"b": [None]}}]

    assert pair.to_worker(rows=rows) == {"rows": rows}
    assert pair.to_parent(rows=rows) == {"rows": rows}


def test_numbers_of_numpy_and_subclasses_become_plain_ones(pair: Pair) -> None:
    class Name(str):
        pass

    rows = [np.float32(0.5), np.int64(7), np.bool_(True), np.str_("s"), Name("n"), np.bytes_(b"b")]

    assert pair.to_worker(rows=rows)["rows"] == [0.5, 7, True, "s", "n", b"b"]


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6, dtype=np.float16).reshape(2, 3),
    np.array([True, False]),
    np.zeros((0, 5), np.int8),
    np.array(5, np.uint64),
    np.arange(20, dtype=">i4")[::3],
    np.array(["2026-01-01"], "M8[ns]"),
    np.random.default_rng(1).random((300, 7)),
    np.asfortranarray(np.random.default_rng(1).random((300, 7))),
    np.random.default_rng(1).random((3, 40_000))[:, ::2],
    np.random.default_rng(1).random((3, 100_000)),  # larger than the slab
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_an_array_arrives_as_it_was_both_ways(pair: Pair, array: np.ndarray) -> None:
    for columns in (pair.to_worker(x=array), pair.to_parent(x=array)):
        arrived = columns["x"]
        assert arrived.dtype == array.dtype
        assert arrived.shape == array.shape
        np.testing.assert_array_equal(arrived, array)
        assert arrived.flags.writeable
        assert arrived.flags.aligned


def test_arrays_of_several_callers_arrive_as_one_that_is_contiguous_and_aligned(
    pair: Pair,
) -> None:
    for size in (2, 5_000, 50_000):  # inline, in the slab, in a file of its own
        parts = [np.full((rows, size), rows, np.float32) for rows in (1, 3, 2)]

        x = pair.to_worker(first=np.ones(2000), x=gathered(parts))["x"]

        np.testing.assert_array_equal(x, np.concatenate(parts))
        assert x.flags.c_contiguous
        assert x.ctypes.data % ALIGNMENT == 0 or size == 2


def test_an_input_in_the_slab_is_not_copied_and_an_output_is(pair: Pair) -> None:
    x = np.zeros(5000)

    given = pair.to_worker(x=x)["x"]
    answer = pair.to_parent(x=given)["x"]
    pair.to_worker(x=x + 1)  # the next batch

    assert given[0] == 1
    assert answer[0] == 0


def test_an_input_in_the_slab_is_not_written_over_while_a_view_of_it_is_used(pair: Pair) -> None:
    def answered(number: int) -> Any:
        x = pair.to_worker(x=np.full(5000, number))["x"]
        pair.worker.add(Cargo({"x": np.zeros(50_000) if number % 2 else [number]}), slab=True)
        view = x[::2] if number < 4 else None
        del x
        thread = threading.Thread(target=pair.worker.answer)
        thread.start()
        pair.parent.receive()
        thread.join()
        return view

    kept = [answered(number) for number in range(8)]

    assert [view.max() for view in kept[:4]] == [view.min() for view in kept[:4]] == [0, 1, 2, 3]
    del kept
    answered(8)  # its answer says that the slab is free
    answered(9)
    assert pair.slabs[0].memory[:8] == pair.slabs[1].memory[:8] == struct.pack("q", 9)


def test_arrays_of_different_shapes_and_none_share_a_list(pair: Pair) -> None:
    rows = [np.arange(3), None, np.arange(5_000), np.arange(200_000)]

    arrived = pair.to_worker(rows=gathered([rows[:2], rows[2:]]))["rows"]

    assert arrived[1] is None
    for sent, got in zip(rows, arrived, strict=True):
        np.testing.assert_array_equal(sent, got)


def test_arrays_of_objects_arrive_as_lists(pair: Pair) -> None:
    assert pair.to_worker(x=np.array(["a", b"b", None], object)) == {"x": ["a", b"b", None]}


def test_text_larger_than_every_buffer_crosses_both_ways(pair: Pair) -> None:
    text = ["x" * 3_000_000, "y"]

    assert pair.to_worker(text=text)["text"] == text
    assert pair.to_parent(text=text)["text"] == text
    assert pair.to_worker(text=["short"])["text"] == ["short"]


def test_messages_sent_together_arrive_one_by_one(pair: Pair) -> None:
    big = np.arange(50_000.0)

    def send() -> None:
        for number in range(100):
            pair.worker.add(Cargo({"n": [number], "x": big[: number * 500]}))
        pair.worker.flush()

    thread = threading.Thread(target=send)
    thread.start()
    for number in range(100):
        columns = pair.parent.receive().columns
        assert columns["n"] == [number]
        np.testing.assert_array_equal(columns["x"], big[: number * 500])
    thread.join()


def test_a_response_of_a_stream_is_not_written_over_by_the_next(pair: Pair) -> None:
    for number in (1.0, 2.0):
        pair.worker.send(Cargo({"x": np.full(50_000, number)}))

    assert [pair.parent.receive().columns["x"][0] for _ in range(2)] == [1.0, 2.0]


@pytest.mark.parametrize("bad", [2**70, "\ud800", {"a": object()}, np.zeros(2, "i4,f4")])
def test_what_cannot_be_sent_is_an_error_and_nothing_is_sent(pair: Pair, bad: Any) -> None:
    with pytest.raises(UNSENDABLE):
        pair.parent.send(Cargo({"x": np.zeros(200_000), "rows": [bad]}))

    assert why_not_sent({"rows": [bad]})
    assert pair.to_worker(rows=["fine"]) == {"rows": ["fine"]}


def test_what_can_be_sent_has_no_reason_not_to_be() -> None:
    assert why_not_sent({"x": np.zeros(3), "rows": [None, "a", np.float32(1)]}) is None


def frame(body: bytes, flags: int = 0) -> bytes:
    return struct.pack("<IIHH", len(body), 0, flags, 0x7957) + body


def array_at(where: int, dtype: bytes, shape: list[int], offset: int) -> bytes:
    head = struct.pack("<B8sB", where, dtype, len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
    data = msgspec.msgpack.Ext(1, head + struct.pack("<Q", offset))
    return frame(msgspec.msgpack.encode(["Cargo", {"x": data}]))


@pytest.mark.parametrize(
    "garbage",
    [
        b"Hello, is this the log?\n",
        struct.pack("<IIHH", 0xFFFFFFF0, 0, 0, 0x7957),
        frame(b"\xc1"),
        frame(msgspec.msgpack.encode(["Other", {}])),
        frame(msgspec.msgpack.encode(["Cargo", 3])),
        frame(msgspec.msgpack.encode(["Cargo", {"x": msgspec.msgpack.Ext(7, b"")}])),
        frame(msgspec.msgpack.encode(["Cargo", {"x": msgspec.msgpack.Ext(1, b"\1")}])),
        frame(msgspec.msgpack.encode(["Cargo", {}]), flags=HAS_FILE),  # where is its descriptor?
        array_at(1, b"<f8", [100], 1 << 40),
        array_at(1, b"<f8", [1 << 62], 0),
        array_at(1, b"|O", [1], 0),
        array_at(1, b"nonsense", [1], 0),
        array_at(2, b"<f8", [1], 0),
    ],
    ids=range(13),
)
def test_garbage_is_known_as_such(pair: Pair, garbage: bytes) -> None:
    pair.to_the_parent.sendall(garbage)

    with pytest.raises(Garbage):
        pair.parent.receive()


@given(st.binary(min_size=12, max_size=200))
@examples(2)
def test_random_bytes_never_become_a_message(garbage: bytes) -> None:
    pair = Pair()
    try:
        pair.to_the_parent.sendall(garbage)
        pair.to_the_parent.shutdown(socket.SHUT_WR)
        with pytest.raises((Garbage, EOFError)):
            pair.parent.receive()
    finally:
        pair.close()


def test_the_end_of_the_other_process_is_an_error(pair: Pair) -> None:
    pair.to_the_parent.sendall(frame(b"cut off")[:-1])
    pair.worker.close()

    with pytest.raises(EOFError):
        pair.parent.receive()
    with pytest.raises(OSError):  # noqa: PT011 - EPIPE or ECONNRESET
        pair.parent.send(Cargo({"x": ["a" * 1_000_000]}))


def test_a_region_is_filled_from_its_start_and_never_past_its_end() -> None:
    slab = Pair()
    region = Region(slab.slabs[0].memory, 0, 256)

    assert [region.take(n) for n in (1, 64, 100, 1)] == [0, 64, 128, None]
    region.clear()
    assert region.take(256) == 0
    assert region.take(1) is None
    slab.close()


def test_a_memory_file_works_where_there_is_no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")

    file = memory_file("test", 1000)
    slab = Slab.open(file)
    os.close(file)

    assert len(slab.memory) == 1000
    slab.close()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    rows=st.lists(values),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    width=st.integers(0, 3000),
)
@examples(0.5)
def test_any_columns_cross_and_come_back(rows: list[Any], counts: list[int], width: int) -> None:
    pair = Pair(64 << 10)
    try:
        parts = [np.random.default_rng(n).random((n, width)) for n in counts]
        there = pair.to_worker(rows=rows, x=gathered(parts))
        back = pair.to_parent(**there)

        assert back["rows"] == rows
        np.testing.assert_array_equal(back["x"], np.concatenate(parts))
    finally:
        del there, back
        pair.close()


def test_the_limits_fit_together() -> None:
    assert encoding.INLINE_BYTES < encoding.INLINE_BYTES_WITHOUT_SLAB < shared_memory.SLAB_BYTES


def test_what_a_full_socket_does_not_take_follows_in_order(pair: Pair) -> None:
    pair.to_the_worker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as small as it may be
    large = np.arange(100_000.0)
    columns: list[dict[str, Any]] = [
        {"rows": ["x" * 100_000]},
        {"rows": ["next"]},
        {"x": large},  # in a file of its own
        {"rows": ["last"]},
    ]
    for one in columns:
        pair.parent.add(Cargo(one))
    assert not pair.parent.write()
    assert not pair.parent.was_read()

    thread = threading.Thread(target=pair.parent.flush)
    thread.start()
    for sent in columns:
        np.testing.assert_equal(pair.worker.receive().columns, sent)
    thread.join()
    assert pair.parent.write()
    assert pair.parent.was_read()


def test_files_that_were_not_sent_are_closed(pair: Pair) -> None:
    pair.to_the_worker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    pair.parent.add(Cargo({"rows": ["x" * 1_000_000]}))
    pair.parent.add(Cargo({"x": np.zeros(100_000)}))
    assert not pair.parent.write()

    pair.parent.close()  # the fixture finds no file left


@pytest.mark.parametrize("reads", [False, True])
def test_what_the_other_end_did_not_read_before_it_closed_is_known(pair: Pair, reads: bool) -> None:
    pair.parent.send(Cargo({"rows": ["a"]}))
    if reads:
        pair.worker.receive()
    pair.worker.close()

    assert pair.parent.was_read() is reads


def test_messages_are_decoded_together_up_to_one_that_takes_long(pair: Pair) -> None:
    for rows in (["a"], ["b"]):
        pair.worker.add(Cargo({"rows": rows}))
    pair.worker.add(Cargo({"x": np.ones(50_000)}), slab=True)
    pair.worker.add(Cargo({"rows": ["c"]}))
    pair.worker.flush()
    while not (arrived := pair.parent.decode(100_000)):
        pair.parent.read()

    assert [message.columns for message in arrived] == [{"rows": ["a"]}, {"rows": ["b"]}]
    assert pair.parent.has_left
    assert pair.parent.decode(100_000) == []
    assert pair.parent.decode_next().columns["x"].sum() == 50_000
    assert [message.columns for message in pair.parent.decode(100_000)] == [{"rows": ["c"]}]
    assert not pair.parent.has_left


def test_messages_before_garbage_are_decoded(pair: Pair) -> None:
    good = frame(msgspec.msgpack.encode(["Cargo", {"rows": ["a"]}]))
    for garbage in (b"Hello, is this the log?\n", frame(b"\xc1")):
        other = Pair()
        other.to_the_parent.sendall(good + garbage)
        other.parent.read()

        assert [message.columns for message in other.parent.decode(1 << 20)] == [{"rows": ["a"]}]
        assert other.parent.has_left
        with pytest.raises(Garbage):
            other.parent.decode_next()
        other.close()


def test_a_socket_that_takes_no_files_knows_a_message_that_has_one_as_garbage(pair: Pair) -> None:
    pair.parent.takes_files = False

    assert pair.to_parent(rows=["a"]) == {"rows": ["a"]}
    pair.worker.send(Cargo({"x": np.zeros(100_000)}))
    pair.parent.read()
    with pytest.raises(Garbage, match="without its descriptor"):
        pair.parent.decode_next()


def test_what_could_be_encoded_can_be_decoded_by_one_that_is_deeper_in_its_calls() -> None:
    def decoded(calls: int) -> Any:
        if calls:
            return decoded(calls - 1)
        return MessageDecoder(Cargo, copies=True).decode(memoryview(body))

    value: list[Any] = []
    levels = sys.getrecursionlimit() - 200
    for _ in range(levels):
        value = [value]
    body = MessageEncoder().body(Cargo({"x": value}))
    found = decoded(150).columns["x"]
    while found:
        (found,) = found
        levels -= 1
    assert levels == 0


def test_msgspec_looks_at_types_in_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it reads what it knows of a type only by half, and crashes."""
    inside: list[int] = []
    most_inside: list[int] = []
    build = msgspec.msgpack.Decoder

    def decoder(*args: Any, **settings: Any) -> Any:
        inside.append(1)
        threading.Event().wait(0.02)  # here another one would come in
        most_inside.append(len(inside))
        inside.pop()
        return build(*args, **settings)

    monkeypatch.setattr(msgspec.msgpack, "Decoder", decoder)
    threads = [threading.Thread(target=partial(MessageDecoder, int, copies=True)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most_inside == [1, 1, 1]
