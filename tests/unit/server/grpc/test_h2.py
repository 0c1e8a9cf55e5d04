"""server/grpc/h2.py and its parts, against frames written and read by hyperframe and hpack."""

import asyncio
import gzip
import itertools
import random
import threading
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.unit.server.grpc.raw import (
    LIMITS,
    MANY,
    ONE,
    WATCH,
    ManualApplication,
    Peer,
    looped,
    prefixed,
    turned,
)
from wherry.core.values.datatypes import Buffer
from wherry.server.calls.offload import LARGE_BYTES, Offload
from wherry.server.connections.limits import Limits
from wherry.server.connections.open_connections import RESERVE
from wherry.server.grpc import request_messages
from wherry.server.grpc.call import STREAM_WINDOW
from wherry.server.grpc.frame_reader import FRAME_BYTES, ROW_BYTES
from wherry.server.grpc.frames import (
    ANNOUNCEMENT,
    COMPRESSION_ERROR,
    DATA,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HEADERS,
    INTERNAL_ERROR,
    LINGER,
    NO_ERROR,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    frame,
    goaway,
    head,
    header_frames,
    reset,
    window_update,
)
from wherry.server.grpc.h2 import KEEPALIVE_TIME, KEEPALIVE_TIMEOUT, SETTLED
from wherry.server.grpc.hpack import literal
from wherry.server.grpc.messages import unpacked
from wherry.server.grpc.request_messages import PACKED_BYTES
from wherry.server.grpc.streams import CONNECTION_WINDOW, Streams
from wherry.server.grpc.work import (
    CALL_WORK,
    MAX_CALLS,
    MAX_NOISE,
    MAX_RESETS,
    RESETS_OF_A_FAULT,
    TURN_WORK,
)

OK = "0"
TURN_CALLS = TURN_WORK // CALL_WORK
WINDOW = SettingsFrame.INITIAL_WINDOW_SIZE


@pytest.fixture
def app() -> ManualApplication:
    return ManualApplication()


# Calls that go well


@looped
async def test_a_call_is_answered_with_head_message_and_trailers(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.ask(1, b"hello", ("x-key", "1"), ("x-key", "2"), ("a-bin", "AA"), ("grpc-timeout", "5S"))
    call = app.only
    assert (call.path, bytes(call.message), call.timeout) == (ONE, b"hello", 5.0)
    assert call.metadata == {"x-key": "1, 2"}
    call.respond(b"world")
    answer = peer.answers()[1]
    assert answer.headers == [
        (":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0"),
    ]  # fmt: skip
    assert (answer.messages, answer.over, answer.reset) == ([b"world"], True, None)
    assert [c.status for c in peer.ended] == ["OK"]
    call.respond(b"again")  # does nothing
    call.fail("INTERNAL", "again")
    assert peer.frames() == []
    await peer.leave()
    assert app.left == 0


@pytest.mark.parametrize("at_once", [1, 2, 7, 100, 65_536])
@looped
async def test_however_the_bytes_are_cut_the_messages_are_the_same(
    app: ManualApplication, at_once: int
) -> None:
    texts = [b"", b"x", b"y" * 300, b"z" * (1000 if at_once < 100 else 300_000)]
    peer = Peer(app)
    peer.open(1, MANY)
    stream = b"".join(map(prefixed, texts))
    cuts = [stream[:3], stream[3:4], stream[4:17], stream[17:]]
    frames = [
        DataFrame(1, cut, flags=["PADDED"], pad_length=n * 50).serialize()
        for n, cut in enumerate(cuts)
    ]
    peer.feed(b"".join(frames) + DataFrame(1, flags=["END_STREAM"]).serialize(), at_once)
    assert app.messages == texts
    assert app.ends == 1
    await peer.leave()


@pytest.mark.parametrize("at_once", [10**9, 12])
@looped
async def test_a_stream_may_end_with_its_first_message(
    app: ManualApplication, at_once: int
) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    assert len(app.calls) == 1  # it is begun before a message has come
    data = DataFrame(1, prefixed(b"all"), flags=["END_STREAM"]).serialize()
    peer.feed(data, at_once)
    assert (len(app.calls), app.messages, app.ends) == (1, [b"all"], 1)
    app.only.finish()
    await peer.leave()


@looped
async def test_a_stream_answers_as_it_likes_and_ends_behind_the_last_message(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    taken: list[int] = []
    app.only.send(b"one", sent=lambda: taken.append(1))
    assert taken == [1]
    assert peer.answers()[1].messages == [b"one"]
    peer.message(1, b"question")
    assert app.messages == [b"question"]
    app.only.send(b"two")
    peer.data(1, b"", end=True)
    assert app.ends == 1
    app.only.finish()
    answer = peer.answers()[1]
    assert (answer.messages, answer.status, answer.over, answer.reset) == ([b"two"], OK, True, None)
    await peer.leave()


@looped
async def test_one_question_may_have_many_answers(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, WATCH)
    assert app.calls == []  # its message has not come
    peer.message(1, b"q", end=True)
    app.only.send(b"1")
    app.only.send(b"2")
    app.only.fail("UNAVAILABLE", "50% of cafés\n", [("grpc-retry-pushback-ms", "7")])
    answer = peer.answers()[1]
    assert answer.messages == [b"1", b"2"]
    assert answer.headers[-3:] == [
        ("grpc-status", "14"),
        ("grpc-message", "50%25 of caf%C3%A9s%0A"),
        ("grpc-retry-pushback-ms", "7"),
    ]
    await peer.leave()


@looped
async def test_an_error_before_the_client_is_done_stops_it(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    app.only.fail("PERMISSION_DENIED", "no")
    answer = peer.answers()[1]
    assert (answer.status, answer.text, answer.over) == ("7", "no", True)
    assert answer.reset == NO_ERROR
    peer.message(1, b"what was on its way")
    peer.send(HeadersFrame(1, peer.encoder.encode([("x", "y")]), flags=["END_HEADERS"]))
    peer.data(1, b"", end=True)
    assert peer.frames() == []
    peer.ask(3)
    assert len(app.calls) == 2  # the connection is well
    await peer.leave()


@looped
async def test_headers_may_come_in_pieces_with_padding_and_priority(app: ManualApplication) -> None:
    peer = Peer(app)
    block = peer.encoder.encode(peer.head(ONE, ("x-long", "v" * 500)))
    first = HeadersFrame(1, block[:10], flags=["PADDED", "PRIORITY"], pad_length=20, depends_on=7)
    peer.send(first, ContinuationFrame(1, block[10:200]), ContinuationFrame(1))
    peer.send(ContinuationFrame(1, block[200:], flags=["END_HEADERS"]))
    peer.message(1, b"x", end=True)
    assert app.only.metadata["x-long"] == "v" * 500
    await peer.leave()


@pytest.mark.parametrize("at_once", [1000, 65_536])
@looped
async def test_a_head_as_large_as_may_be_is_put_together(
    app: ManualApplication, at_once: int
) -> None:
    peer = Peer(app, limits=Limits())
    value = "v" * (Limits().max_header_bytes - 700)
    frame_ = HeadersFrame(1, flags=["END_HEADERS"])
    frame_.data = peer.encoder.encode(peer.head(ONE, ("x-long", value)), huffman=False)
    peer.feed(PingFrame(0, bytes(8)).serialize() + frame_.serialize(), at_once)
    peer.message(1, b"x", end=True)
    assert app.only.metadata["x-long"] == value
    await peer.leave()


@looped
async def test_equal_heads_are_read_once_and_changes_of_the_table_are_seen(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    for n in range(6):
        peer.ask(2 * n + 1, b"x", ("same", "value"))
    assert {tuple(c.metadata.items()) for c in app.calls} == {(("same", "value"),)}
    assert len({id(c.metadata) for c in app.calls[2:]}) == 1
    peer.encoder.header_table_size = 0  # everything is evicted, indexes mean something else
    for n, value in enumerate(("a", "b", "a")):
        peer.ask(101 + 2 * n, b"x", ("same", value))
    assert [c.metadata["same"] for c in app.calls[-3:]] == ["a", "b", "a"]
    await peer.leave()


@looped
async def test_the_same_block_means_something_else_once_the_table_has_changed(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    kind = literal(b"content-type", b"application/grpc")
    newest = b"\x83\x86" + literal(b":path", ONE.encode()) + kind + b"\xbe"
    for stream, insertion in ((1, b"1"), (3, b""), (5, b""), (7, b"2"), (9, b"")):
        frame_ = HeadersFrame(stream, flags=["END_HEADERS"])
        frame_.data = newest if not insertion else newest[:-1] + b"\x40\x01x\x01" + insertion
        peer.send(frame_)
        peer.message(stream, b"", end=True)
    assert [call.metadata["x"] for call in app.calls] == ["1", "1", "1", "2", "2"]
    await peer.leave()


@looped
async def test_padding_counts_for_the_windows(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    peer.send(DataFrame(1, prefixed(b"abc"), flags=["PADDED"], pad_length=100))
    assert peer.connection.streams.by_id[1].receive_window == STREAM_WINDOW - 8 - 101
    length = len(prefixed(bytes(500))) + 101
    padded = DataFrame(1, prefixed(bytes(500)), flags=["PADDED"], pad_length=100).serialize()
    count = CONNECTION_WINDOW // 2 // length
    await peer.feed_all(padded * count)
    given = [f for f in peer.frames() if isinstance(f, WindowUpdateFrame)]
    assert [f for f in given if f.stream_id == 0] == []
    assert sum(f.window_increment for f in given) >= 0.4 * count * length  # of the stream
    peer.feed(padded)
    (update,) = [f for f in peer.frames() if isinstance(f, WindowUpdateFrame)]
    assert (update.stream_id, update.window_increment) == (0, 8 + 101 + (count + 1) * length)
    await peer.leave()


@looped
async def test_what_the_application_cannot_do_is_internal(app: ManualApplication) -> None:
    class Broken(ManualApplication):
        def __call__(self, rpc: object) -> None:
            raise ZeroDivisionError

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
    peer = Peer(Broken())
    peer.ask(1)
    assert peer.answers()[1].status == "13"
    assert len(reported) == 1
    await peer.leave()


# Compression


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
@looped
async def test_messages_are_unpacked_and_packed(
    app: ManualApplication, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    peer = Peer(app, coding="gzip")
    accepts = ("grpc-accept-encoding", "identity, deflate,gzip")
    peer.open(1, ONE, ("grpc-encoding", coding), accepts)
    peer.data(1, prefixed(pack(b"text" * 1000), 1), end=True)
    assert app.only.message == b"text" * 1000
    app.only.respond(b"answer" * 1000)
    answer = peer.answers()[1]
    assert ("grpc-encoding", "gzip") in answer.headers
    assert answer.data[0] == 1
    assert gzip.decompress(answer.messages[0]) == b"answer" * 1000
    await peer.leave()


@pytest.fixture
def unpackers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The thread and the limit of all that is unpacked."""
    seen: list[tuple[str, int]] = []

    def noted(message: bytes, coding: str, most: int) -> Buffer:
        seen.append((threading.current_thread().name, most))
        return unpacked(message, coding, most)

    monkeypatch.setattr(request_messages, "unpacked", noted)
    return seen


BESIDE = "wherry-offload"


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(bytes(2**20), id="little that inflates to much"),
        pytest.param(random.Random(1).randbytes(2 * PACKED_BYTES), id="much"),
    ],
)
@looped
async def test_large_compressed_messages_are_unpacked_beside_the_loop(
    app: ManualApplication, whole: bytes, unpackers: list[tuple[str, int]]
) -> None:
    peer = Peer(app)
    peer.open(1, ONE, ("grpc-encoding", "gzip"))
    peer.data(1, prefixed(gzip.compress(whole), 1), end=True)
    assert app.calls == []
    peer.ask(3, b"small")
    assert app.only.message == b"small"
    await turned(lambda: len(app.calls) == 2)
    assert app.calls[1].message == whole
    assert [most for name, most in unpackers if name != BESIDE] in ([], [LARGE_BYTES])
    assert unpackers[-1] == (BESIDE, LIMITS.max_body_bytes)
    await peer.leave()


@looped
async def test_small_compressed_messages_are_unpacked_at_once(
    app: ManualApplication, unpackers: list[tuple[str, int]]
) -> None:
    peer = Peer(app)
    peer.open(1, ONE, ("grpc-encoding", "gzip"))
    peer.data(1, prefixed(gzip.compress(bytes(LARGE_BYTES)), 1), end=True)
    assert app.only.message == bytes(LARGE_BYTES)
    assert [most for _, most in unpackers] == [LARGE_BYTES]
    await peer.leave()


@looped
async def test_messages_keep_their_order_while_one_is_unpacked(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, MANY, ("grpc-encoding", "gzip"))
    large = [bytes([i]) * 2**20 for i in range(3)]
    for i, whole in enumerate(large):
        peer.data(1, prefixed(gzip.compress(whole), 1) + prefixed(b"small %d" % i))
    peer.data(1, b"", end=True)
    assert app.messages == []
    app.only.pause()
    app.only.resume()
    await turned(lambda: app.ends == 1)
    small = [b"small 0", b"small 1", b"small 2"]
    assert app.messages == [m for both in zip(large, small, strict=True) for m in both]
    assert peer.connections.turns.behind == 0
    await peer.leave()


@looped
async def test_a_paused_call_gets_no_message_that_was_unpacked_meanwhile(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.open(1, MANY, ("grpc-encoding", "gzip"))
    peer.data(1, prefixed(gzip.compress(bytes(2**20)), 1))
    app.only.pause()
    offload = peer.connections.serving.reading.offload
    await turned(lambda: offload.bytes_in_work == 0 and peer.connections.turns.behind == 0)
    assert app.messages == []
    app.only.resume()
    await turned(lambda: app.messages == [bytes(2**20)])
    await peer.leave()


@pytest.mark.slow
@pytest.mark.parametrize("path", [ONE, MANY])
@looped
async def test_a_client_that_leaves_takes_its_messages_along_that_are_being_unpacked(
    app: ManualApplication, path: str
) -> None:
    peer = Peer(app, limits=Limits())
    for stream_id in range(1, 13, 2):
        peer.open(stream_id, path, ("grpc-encoding", "gzip"))
        peer.data(stream_id, prefixed(gzip.compress(bytes(20 * 2**20)), 1), end=True)
    offload = peer.connections.serving.reading.offload
    assert offload.bytes_in_work == 6 * LARGE_BYTES
    await peer.leave()
    await turned(lambda: offload.bytes_in_work == 0)
    assert app.messages == []
    assert [call for call in app.calls if call.message] == []


@looped
async def test_a_bomb_is_refused_beside_the_loop_as_soon_as_it_is_too_large(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.open(1, ONE, ("grpc-encoding", "gzip"))
    peer.data(1, prefixed(gzip.compress(bytes(LIMITS.max_body_bytes + 1)), 1), end=True)
    await turned(lambda: not peer.connection.streams.by_id)
    assert peer.answers()[1].status == "8"
    assert app.calls == []
    await peer.leave()


@looped
async def test_beyond_what_may_be_unpacked_at_once_calls_are_refused(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.connections.serving.reading.offload = Offload(max_bytes=LARGE_BYTES)
    for stream_id in (1, 3):
        peer.open(stream_id, ONE, ("grpc-encoding", "gzip"))
        peer.data(stream_id, prefixed(gzip.compress(bytes(2**20)), 1), end=True)
    assert peer.answers()[3].status == "14"
    await turned(lambda: len(app.calls) == 1)
    assert app.only.message == bytes(2**20)
    await peer.leave()


@looped
async def test_a_client_that_takes_no_gzip_gets_none(app: ManualApplication) -> None:
    peer = Peer(app, coding="gzip")
    peer.ask(1, b"x", ("grpc-accept-encoding", "identity"))
    app.only.respond(b"answer" * 1000)
    assert peer.answers()[1].messages == [b"answer" * 1000]
    await peer.leave()


# Messages that are none


@pytest.mark.parametrize(
    ("data", "more", "code", "text"),
    [
        (b"", [], "12", "no message for a method"),
        (prefixed(b"a") + prefixed(b"b"), [], "12", "a second message"),
        (prefixed(b"abc")[:-1], [], "13", "ends within a message"),
        (b"\0\0", [], "13", "ends within a message"),
        (prefixed(b"a", 2), [], "13", "flag 2"),
        (prefixed(b"a", 1), [], "13", "without a grpc-encoding"),
        (prefixed(b"none", 1), [("grpc-encoding", "gzip")], "13", "cannot be unpacked"),
        (b"\0\xff\xff\xff\xff", [], "8", "larger than max (4294967295 vs."),
    ],
)
@looped
async def test_a_message_that_is_none_fails_its_call_alone(
    app: ManualApplication, data: bytes, more: list[tuple[str, str]], code: str, text: str
) -> None:
    peer = Peer(app)
    peer.open(1, ONE, *more)
    peer.data(1, data, end=True)
    answer = peer.answers()[1]
    assert (answer.status, answer.over, app.calls) == (code, True, [])
    assert text in answer.text
    peer.open(3, MANY, *more)
    if code != "12":  # streams have as many as they like
        peer.data(3, prefixed(b"", 0) + data, end=True)
        assert peer.answers()[3].status == code
        assert (app.messages, app.left) == ([b""], 1)
    await peer.leave()


@pytest.mark.parametrize(
    ("more", "path", "status", "text"),
    [
        ([], "/t.T/Nope", "12", "Method not found!"),
        ([("grpc-encoding", "zstd")], ONE, "12", "zstd"),
        ([("grpc-timeout", "5")], ONE, "13", "grpc-timeout"),
        ([("grpc-timeout", "123456789S")], ONE, "13", "grpc-timeout"),
        ([("x", "y" * 3990)], ONE, "8", "metadata of"),
    ],
)
@looped
async def test_a_call_that_cannot_be_is_refused_at_its_head(
    app: ManualApplication, more: list[tuple[str, str]], path: str, status: str, text: str
) -> None:
    peer = Peer(app)
    peer.open(1, path, *more)
    answer = peer.answers()[1]
    assert (answer.status, answer.over, answer.reset) == (status, True, None)
    assert text in answer.text
    peer.message(1, b"on its way", end=True)
    peer.ask(3)
    assert peer.frames() == []
    assert len(app.calls) == 1
    await peer.leave()


@pytest.mark.parametrize(
    ("method", "kind", "status"),
    [("GET", "application/grpc", "405"), ("POST", "application/json", "415"),
     ("POST", "application/grpc-web", "415")],
)  # fmt: skip
@looped
async def test_what_is_not_grpc_hears_it_in_http(
    app: ManualApplication, method: str, kind: str, status: str
) -> None:
    peer = Peer(app)
    headers = [*peer.head(method=method)[:-1], ("content-type", kind)]
    block = peer.encoder.encode(headers)
    peer.send(HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"]))
    assert peer.answers()[1].headers == [(":status", status)]
    await peer.leave()


# Malformed input

OPENED = "with a call on stream 1"


def raw_headers(
    peer: Peer, *headers: tuple[str, str], stream: int = 3, ends: bool = False
) -> bytes:
    flags = ["END_HEADERS", *["END_STREAM"] * ends]
    return HeadersFrame(stream, peer.encoder.encode(list(headers)), flags=flags).serialize()


def head_with(*more: tuple[str, str]) -> Callable[[Peer], bytes]:
    return lambda peer: raw_headers(peer, *peer.head(), *more)


CONNECTION_ERRORS: list[tuple[str, bytes | Callable[[Peer], bytes], int]] = [
    ("data on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    ("data on an idle stream", frame(DATA, 0, 3, b"x"), PROTOCOL_ERROR),
    ("data on a stream of ours", frame(DATA, 0, 2, b"x"), PROTOCOL_ERROR),
    ("data with too much padding", frame(DATA, 0x8, 1, b"\x05abc"), PROTOCOL_ERROR),
    ("padded data without length", frame(DATA, 0x8, 1, b""), PROTOCOL_ERROR),
    ("too large a frame", head(FRAME_BYTES + 1, DATA, 0, 1), FRAME_SIZE_ERROR),
    ("too large a ping", frame(6, 0, 0, bytes(9)), FRAME_SIZE_ERROR),
    ("a ping on a stream", frame(6, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("settings on a stream", frame(SETTINGS, 0, 1, b""), PROTOCOL_ERROR),
    ("half a setting", frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    ("an ack with settings", frame(SETTINGS, 1, 0, bytes(6)), FRAME_SIZE_ERROR),
    ("push of 2", SettingsFrame(0, settings={2: 2}).serialize(), PROTOCOL_ERROR),
    ("a huge window", SettingsFrame(0, settings={4: 2**31}).serialize(), FLOW_CONTROL_ERROR),
    ("tiny frames", SettingsFrame(0, settings={5: 16383}).serialize(), PROTOCOL_ERROR),
    ("huge frames", SettingsFrame(0, settings={5: 2**24}).serialize(), PROTOCOL_ERROR),
    ("no credit", frame(8, 0, 0, bytes(4)), PROTOCOL_ERROR),
    ("too much credit", window_update(0, 2**31 - 1), FLOW_CONTROL_ERROR),
    ("credit of 3 bytes", frame(8, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    ("credit for an idle stream", window_update(9, 1), PROTOCOL_ERROR),
    (
        "all windows overflow",
        window_update(1, 2**31 - 1 - 65535) + SettingsFrame(0, settings={4: 65536}).serialize(),
        FLOW_CONTROL_ERROR,
    ),
    ("a reset of 5 bytes", frame(RST_STREAM, 0, 1, bytes(5)), FRAME_SIZE_ERROR),
    ("a reset of stream 0", reset(0, 8), PROTOCOL_ERROR),
    ("a reset of an idle stream", reset(3, 8), PROTOCOL_ERROR),
    ("a promise", frame(5, 4, 1, bytes(4)), PROTOCOL_ERROR),
    ("priority of stream 0", frame(2, 0, 0, bytes(5)), PROTOCOL_ERROR),
    ("goaway on a stream", frame(7, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("goaway of 7 bytes", frame(7, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    ("headers on an even stream", frame(HEADERS, 4, 4, b"\x82"), PROTOCOL_ERROR),
    ("headers on stream 0", frame(HEADERS, 4, 0, b"\x82"), PROTOCOL_ERROR),
    ("headers, all padding", frame(HEADERS, 0xC, 3, b"\x05abc"), PROTOCOL_ERROR),
    ("headers without their priority", frame(HEADERS, 0x24, 3, b"abc"), FRAME_SIZE_ERROR),
    ("no hpack", frame(HEADERS, 4, 3, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
    ("an index that is not there", frame(HEADERS, 4, 3, b"\xfe"), COMPRESSION_ERROR),
    ("a huge table", frame(HEADERS, 4, 3, b"\x3f\xe2\x1f"), COMPRESSION_ERROR),
    ("continuation of nothing", frame(9, 4, 1, b""), PROTOCOL_ERROR),
    (
        "continuation of another stream",
        frame(HEADERS, 0, 3, b"\x82") + frame(9, 4, 1, b""),
        PROTOCOL_ERROR,
    ),
    (
        "headers that do not go on",
        frame(HEADERS, 0, 3, b"\x82") + frame(DATA, 0, 1, b""),
        PROTOCOL_ERROR,
    ),
    (
        "headers broken by an unknown frame",
        frame(HEADERS, 0, 3, b"\x82") + frame(77, 0, 1, b""),
        PROTOCOL_ERROR,
    ),
    ("headers too large for a frame", head(LIMITS.max_header_bytes + 1, 1, 4, 3), FRAME_SIZE_ERROR),
    (
        "headers without end",
        frame(HEADERS, 0, 3, bytes(3000)) + frame(9, 0, 3, bytes(3000)),
        ENHANCE_YOUR_CALM,
    ),
    (
        "empty continuations",
        frame(HEADERS, 0, 3, b"\x82") + (MAX_NOISE + 1) * frame(9, 0, 3, b""),
        ENHANCE_YOUR_CALM,
    ),
    ("pings", (MAX_NOISE + 1) * frame(6, 0, 0, bytes(8)), ENHANCE_YOUR_CALM),
    ("settings", (MAX_NOISE + 1) * frame(SETTINGS, 0, 0, b""), ENHANCE_YOUR_CALM),
    ("empty data", (MAX_NOISE + 1) * frame(DATA, 0, 1, b""), ENHANCE_YOUR_CALM),
    ("unknown frames", (MAX_NOISE + 1) * frame(77, 0, 0, b""), ENHANCE_YOUR_CALM),
    (
        "headers on a closed stream",
        lambda peer: raw_headers(peer, *peer.head(), stream=5) + raw_headers(peer, *peer.head()),
        STREAM_CLOSED,
    ),
    ("data on a closed stream", reset(1, 8) + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
]


@pytest.mark.parametrize(
    ("data", "code"),
    [(data, code) for _, data, code in CONNECTION_ERRORS],
    ids=[name for name, _, _ in CONNECTION_ERRORS],
)
@looped
async def test_a_client_that_breaks_the_protocol_is_told_how_and_disconnected(
    app: ManualApplication, data: bytes | Callable[[Peer], bytes], code: int
) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    await peer.feed_all(data if isinstance(data, bytes) else data(peer))
    assert peer.goaway() == code
    assert peer.wire.ended
    assert app.left == len(app.calls)
    peer.ask(99)  # it is not read
    assert peer.frames() == []
    peer.pass_time(LINGER)
    assert peer.wire.is_closing()
    await peer.leave()


STREAM_ERRORS: list[tuple[str, bytes | Callable[[Peer], bytes], int, int]] = [
    ("no credit", frame(8, 0, 1, bytes(4)), 1, PROTOCOL_ERROR),
    ("too much credit", window_update(1, 2**31 - 1), 1, FLOW_CONTROL_ERROR),
    (
        "data behind the end",
        frame(DATA, 1, 1, b"") + frame(DATA, 0, 1, b"x"),
        1,
        STREAM_CLOSED,
    ),
    (
        "more data than its window",
        b"".join(frame(DATA, 0, 1, prefixed(bytes(999_995))) for _ in range(3)),
        1,
        FLOW_CONTROL_ERROR,
    ),
    ("priority of 4 bytes", frame(2, 0, 1, bytes(4)), 1, FRAME_SIZE_ERROR),
    (
        "a second head",
        lambda peer: raw_headers(peer, *peer.head(), stream=1),
        1,
        PROTOCOL_ERROR,
    ),
    (
        "trailers behind the end",
        lambda peer: frame(DATA, 1, 1, b"") + raw_headers(peer, ("x", "y"), stream=1),
        1,
        STREAM_CLOSED,
    ),
    ("no headers", frame(HEADERS, 4, 3, b""), 3, PROTOCOL_ERROR),
    ("an upper-case name", head_with(("X-Y", "1")), 3, PROTOCOL_ERROR),
    ("a space in a name", head_with(("x y", "1")), 3, PROTOCOL_ERROR),
    ("no name", head_with(("", "1")), 3, PROTOCOL_ERROR),
    ("a path behind the headers", head_with((":path", "/")), 3, PROTOCOL_ERROR),
    (
        "a pseudo-header at the end",
        lambda peer: raw_headers(
            peer, *(h for h in peer.head() if h[0] != ":authority"), (":authority", "x")
        ),
        3,
        PROTOCOL_ERROR,
    ),
    ("connection", head_with(("connection", "close")), 3, PROTOCOL_ERROR),
    ("te: gzip", head_with(("te", "gzip")), 3, PROTOCOL_ERROR),
    ("a length of words", head_with(("content-length", "ten")), 3, PROTOCOL_ERROR),
    ("a length below 0", head_with(("content-length", "-1")), 3, PROTOCOL_ERROR),
    (
        "two lengths",
        head_with(("content-length", "7"), ("content-length", "7")),
        3,
        PROTOCOL_ERROR,
    ),
    ("a line break", head_with(("x", "a\r\nb: c")), 3, PROTOCOL_ERROR),
    (
        "two paths",
        lambda peer: raw_headers(peer, (":path", "/"), *peer.head()),
        3,
        PROTOCOL_ERROR,
    ),
    (
        "an unknown pseudo-header",
        lambda peer: raw_headers(peer, (":status", "200"), *peer.head()),
        3,
        PROTOCOL_ERROR,
    ),
    (
        "a pseudo-header in trailers",
        lambda peer: raw_headers(peer, (":path", "/"), stream=1, ends=True),
        1,
        PROTOCOL_ERROR,
    ),
    (
        "an empty path",
        lambda peer: raw_headers(
            peer, *((name, "" if name == ":path" else value) for name, value in peer.head())
        ),
        3,
        PROTOCOL_ERROR,
    ),
    ("no path", lambda peer: raw_headers(peer, *peer.head()[:2]), 3, PROTOCOL_ERROR),
]


Part = tuple[bytes, bool]  # of the client's DATA, and whether it ends its side

OTHER_LENGTHS: list[tuple[str, str, list[Part]]] = [
    ("one frame that is shorter", ONE, [(prefixed(b"abcd"), True)]),
    ("one frame that is longer", ONE, [(prefixed(b"abcdef"), True)]),
    ("frames that are longer", ONE, [(prefixed(b"abcde"), False), (b"x", False)]),
    ("frames that end early", ONE, [(prefixed(b"abcde")[:9], False), (b"", True)]),
    ("an empty body", ONE, [(b"", True)]),
    ("a stream that is longer", MANY, [(prefixed(b"abcde"), False), (prefixed(b""), False)]),
    ("a stream that ends early", MANY, [(prefixed(b""), False), (b"", True)]),
]


@pytest.mark.parametrize(
    ("path", "parts"),
    [case[1:] for case in OTHER_LENGTHS],
    ids=[case[0] for case in OTHER_LENGTHS],
)
@looped
async def test_data_of_another_length_than_was_announced_resets_its_stream_alone(
    app: ManualApplication, path: str, parts: list[Part]
) -> None:
    peer = Peer(app)
    peer.open(1, path, ("content-length", str(len(prefixed(b"abcde")))))
    for data, ends in parts:
        peer.data(1, data, end=ends)
    assert peer.answers()[1].reset == PROTOCOL_ERROR
    assert app.left == len(app.calls) == (path == MANY)
    peer.ask(101, b"hi", ("content-length", str(len(prefixed(b"hi")))))
    app.calls[-1].respond(b"well")
    assert peer.answers()[101].messages == [b"well"]
    await peer.leave()


@looped
async def test_a_long_message_of_the_length_that_was_announced_is_taken(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    data = prefixed(bytes(500_000))
    peer.open(1, ONE, ("content-length", str(len(data))))
    step = 16_384  # rows of equal frames, and a rest
    for begin in range(0, len(data), step):
        peer.data(1, data[begin : begin + step], end=begin + step >= len(data))
    assert len(app.only.message) == 500_000
    await peer.leave()


@pytest.mark.parametrize(
    ("data", "stream", "code"),
    [case[1:] for case in STREAM_ERRORS],
    ids=[case[0] for case in STREAM_ERRORS],
)
@looped
async def test_what_is_wrong_within_a_stream_resets_it_alone(
    app: ManualApplication, data: bytes | Callable[[Peer], bytes], stream: int, code: int
) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    app.only.pause()
    peer.feed(data if isinstance(data, bytes) else data(peer))
    assert peer.answers()[stream].reset == code
    assert app.left == (stream == 1)
    peer.ask(101)
    app.calls[-1].respond(b"well")
    assert peer.answers()[101].messages == [b"well"]
    await peer.leave()


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + frame(6, 0, 0, bytes(8)), PREFACE[:-1] + b"x"]
)
@looped
async def test_what_does_not_begin_with_the_preface_is_no_client(
    app: ManualApplication, start: bytes
) -> None:
    peer = Peer(app, greet=False)
    peer.feed(start, 5)
    assert peer.goaway() == PROTOCOL_ERROR
    assert peer.wire.ended
    await peer.leave()


@looped
async def test_what_is_unknown_or_of_no_use_is_ignored(app: ManualApplication) -> None:
    peer = Peer(app, settings={0x99: 5})
    peer.feed(frame(0x77, 0xFF, 0, bytes(100_000)), 1000)
    peer.send(PriorityFrame(5, depends_on=3))
    peer.feed(goaway(0, NO_ERROR, "leaving"))
    peer.ask(7)
    app.only.respond(b"x")
    assert peer.answers()[7].messages == [b"x"]
    peer.feed(reset(7, 8) + window_update(7, 5))  # what crossed our answer
    assert peer.frames() == []
    await peer.leave()


# Floods


def block_frames(stream_id: int, block: bytes, piece: int = 4000) -> bytes:
    """A header block as a client sends it."""
    return header_frames(stream_id, 0, block, piece)


@pytest.mark.parametrize("piece", [4000, 100, 1])
@looped
async def test_a_header_block_that_unfolds_to_more_than_we_take_ends_the_connection(
    app: ManualApplication, piece: int
) -> None:
    peer = Peer(app)
    entry = b"\x40\x01x" + literal(b"", b"v" * 3900)[2:]
    peer.feed(block_frames(1, entry))
    peer.frames()
    bomb = block_frames(3, b"\xbe" * 3900, piece)
    tracemalloc.start()
    await peer.feed_all(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peer.goaway() == ENHANCE_YOUR_CALM
    assert peak < 200_000
    assert app.calls == []
    await peer.leave()


@looped
async def test_headers_over_the_limit_are_refused_and_the_connection_goes_on(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.open(1, ONE, ("x", "v" * 2000), ("y", "v" * 2000))
    assert peer.answers()[1].status == "8"
    peer.open(3, ONE, ("x", "v" * 2000))  # which was put into the table
    peer.message(3, b"hi", end=True)
    assert app.only.metadata["x"] == "v" * 2000
    await peer.leave()


@looped
async def test_trailers_over_the_limit_reset_their_stream_alone(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    trailers_ = peer.encoder.encode([("x", "v" * 2000), ("y", "v" * 2000)])
    peer.send(HeadersFrame(1, trailers_[:3000], flags=["END_STREAM"]))
    peer.send(ContinuationFrame(1, trailers_[3000:], flags=["END_HEADERS"]))
    assert peer.answers()[1].reset == ENHANCE_YOUR_CALM
    peer.ask(3)
    assert len(app.calls) == 2
    await peer.leave()


@looped
async def test_headers_on_streams_that_are_cut_off_count_for_what_they_have(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    app.only.fail("UNAUTHENTICATED", "no")
    late = block_frames(1, b"\x90" * 50)
    await peer.feed_all(late * (MAX_NOISE // 50 - 1))
    assert peer.goaway() is None
    await peer.feed_all(late * 2)
    assert peer.goaway() == ENHANCE_YOUR_CALM
    await peer.leave()


def calls(first: int, count: int) -> bytes:
    """Whole calls, of no metadata."""
    block = b"\x83\x86" + literal(b":path", ONE.encode())
    block += literal(b"content-type", b"application/grpc")
    return b"".join(
        header_frames(n, 0, block, 4000) + frame(DATA, 1, n, prefixed(b""))
        for n in range(first, first + 2 * count, 2)
    )


@looped
async def test_more_calls_than_one_turn_has_are_begun_in_the_next_ones(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.feed(calls(1, 3 * TURN_CALLS + 5) + PingFrame(0, b"12345678").serialize())
    assert TURN_CALLS * 3 // 4 < len(app.calls) <= TURN_CALLS
    assert not peer.wire.reading
    before = len(app.calls)
    await asyncio.sleep(0)
    assert before < len(app.calls) <= 2 * TURN_CALLS
    await peer.feed_all(b"")
    while not peer.wire.reading:  # noqa: ASYNC110 - turns are awaited
        await asyncio.sleep(0)
    assert len(app.calls) == 3 * TURN_CALLS + 5
    assert [type(frame_) for frame_ in peer.frames()] == [PingFrame]
    assert peer.connections.turns.behind == 0
    await peer.leave()


@looped
async def test_connections_with_much_to_do_share_each_turn(app: ManualApplication) -> None:
    busy = Peer(app)
    peers = [busy, *(Peer(app, beside=busy) for _ in range(15))]
    for peer in peers:
        peer.feed(calls(1, 300))
    begun = len(app.calls)
    await asyncio.sleep(0)
    assert 16 <= len(app.calls) - begun <= 3 * TURN_CALLS
    honest = Peer(app, beside=busy)
    honest.ask(1, b"me, too")
    assert bytes(app.calls[-1].message) == b"me, too"
    for peer in peers:
        peer.wire.close()
    honest.wire.close()
    await busy.connections.all_closed()
    assert busy.connections.turns.behind == 0


@looped
async def test_what_comes_while_calls_wait_for_their_turn_is_read_behind_them(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.feed(calls(1, TURN_CALLS + 1))
    peer.wire.reading = True  # as a transport that had more already
    peer.feed(calls(1001, 1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(app.calls) == TURN_CALLS + 2
    assert peer.goaway() is None
    await peer.leave()


@looped
async def test_what_many_small_frames_are_answered_goes_out_at_once(app: ManualApplication) -> None:
    peer = Peer(app)
    before = peer.wire.writes
    peer.feed(100 * PingFrame(0, b"12345678").serialize())
    assert peer.wire.writes == before + 1
    assert len(peer.frames()) == 100
    await peer.leave()


@looped
async def test_many_small_windows_become_one_frame_of_data(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 0})
    peer.ask(1)
    app.only.respond(b"x" * 5000)
    peer.frames()
    peer.feed(1000 * window_update(1, 1))
    (data,) = [frame_ for frame_ in peer.frames() if isinstance(frame_, DataFrame)]
    assert len(data.data) == 1000
    await peer.leave()


@looped
async def test_opening_and_cancelling_without_end_is_ended(app: ManualApplication) -> None:
    peer = Peer(app)
    for n in range(MAX_RESETS):
        peer.ask(2 * n + 1)
        peer.feed(reset(2 * n + 1, 8))
    assert app.left == MAX_RESETS
    assert peer.goaway() is None
    peer.pass_time(0.5)  # a new account
    for n in range(MAX_RESETS, 2 * MAX_RESETS):
        peer.ask(2 * n + 1)
        peer.feed(reset(2 * n + 1, 8))
    assert peer.goaway() is None
    peer.ask(100_001)
    peer.feed(reset(100_001, 8))
    assert peer.goaway() == ENHANCE_YOUR_CALM
    await peer.leave()


@looped
async def test_streams_that_we_had_to_reset_count_more(app: ManualApplication) -> None:
    """Else a client's invalid frames would cancel its calls for it, as often as it likes."""
    peer = Peer(app)
    for n in range(MAX_RESETS // RESETS_OF_A_FAULT):
        peer.ask(2 * n + 1)
        peer.feed(window_update(2 * n + 1, 0))
    assert peer.goaway() is None
    peer.ask(100_001)
    peer.feed(window_update(100_001, 0))
    assert peer.goaway() == ENHANCE_YOUR_CALM
    await peer.leave()


@looped
async def test_settings_count_for_what_they_cost(app: ManualApplication) -> None:
    peer = Peer(app)
    for n in range(1000):
        peer.ask(2 * n + 1)
    peer.feed((MAX_NOISE // 1000 + 1) * SettingsFrame(0, settings={WINDOW: 5}).serialize())
    assert peer.goaway() == ENHANCE_YOUR_CALM
    await peer.leave()


@looped
async def test_calls_that_were_cut_off_are_forgotten(app: ManualApplication) -> None:
    peer = Peer(app)
    for n in range(2 * MAX_CALLS):
        peer.open(2 * n + 1, MANY)
        app.calls.pop().fail("UNAUTHENTICATED", "no")
    assert peer.goaway() is None
    peer.message(4 * MAX_CALLS - 1, b"late")
    assert peer.goaway() is None
    peer.message(1, b"much too late")
    assert peer.goaway() == STREAM_CLOSED
    await peer.leave()


@looped
async def test_more_calls_than_allowed_wait_for_a_retry(app: ManualApplication) -> None:
    peer = Peer(app)
    for n in range(MAX_CALLS):
        peer.ask(2 * n + 1)
    peer.frames()
    peer.ask(2 * MAX_CALLS + 1)
    assert peer.answers()[2 * MAX_CALLS + 1].reset == REFUSED_STREAM
    app.calls[0].respond(b"")
    peer.ask(2 * MAX_CALLS + 3)
    assert len(app.calls) == MAX_CALLS + 1
    await peer.leave()
    assert app.left == MAX_CALLS


@looped
async def test_a_client_that_takes_nothing_is_not_read_either(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.wire.room = 100
    ping = PingFrame(0, bytes(8)).serialize()
    for _ in range(100):
        peer.feed(ping)
    assert not peer.wire.reading
    assert len(peer.wire.written) < 120
    peer.wire.take()
    assert peer.wire.reading
    await peer.leave()


# Windows


@looped
async def test_an_answer_waits_for_the_window_of_its_stream(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 10})
    peer.ask(1)
    peer.ask(3)
    app.calls[0].respond(b"x" * 20)
    assert peer.answers()[1].data == prefixed(b"x" * 20)[:10]
    app.calls[1].respond(b"abc")  # fits, and does not wait for its neighbour
    assert peer.answers()[3].over
    peer.feed(window_update(1, 14))
    answer = peer.answers()[1]
    assert (answer.data, answer.over) == (b"x" * 14, False)
    peer.send(SettingsFrame(0, settings={WINDOW: 11}))
    answer = peer.answers()[1]
    assert (answer.data, answer.status, answer.over) == (b"x", OK, True)
    await peer.leave()


@looped
async def test_a_window_may_become_negative(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 10})
    peer.ask(1)
    app.only.respond(b"x" * 20)
    peer.answers()
    peer.send(SettingsFrame(0, settings={WINDOW: 0}))
    peer.feed(window_update(1, 10))
    assert 1 not in peer.answers()
    peer.feed(window_update(1, 15))
    assert peer.answers()[1].over
    await peer.leave()


@looped
async def test_calls_share_the_window_of_the_connection_in_turn(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 10**6})
    for n in (1, 3):
        peer.ask(n)
    for call in app.calls:
        call.respond(bytes(100_000))
    peer.answers()
    peer.feed(window_update(0, 40_000))
    sizes = {n: len(answer.data) for n, answer in peer.answers().items()}
    assert sum(sizes.values()) == 40_000
    assert min(sizes[1], sizes[3]) > 0
    peer.feed(window_update(0, 10**6))
    assert all(answer.over for answer in peer.answers().values())
    await peer.leave()


@looped
async def test_a_stream_is_told_when_the_client_has_taken_its_message(
    app: ManualApplication,
) -> None:
    peer = Peer(app, settings={WINDOW: 100})
    peer.open(1, MANY)
    taken: list[int] = []
    for n in range(3):
        app.only.send(b"x" * 45, sent=lambda n=n: taken.append(n))  # type: ignore[misc]
    app.only.finish()
    assert taken == [0, 1]
    peer.feed(window_update(1, 49))
    assert taken == [0, 1]
    peer.feed(window_update(1, 1))
    assert taken == [0, 1, 2]
    answer = peer.answers()[1]
    assert (len(answer.messages), answer.status) == (3, OK)
    await peer.leave()


@looped
async def test_a_stream_may_send_the_next_message_whenever_the_last_was_taken(
    app: ManualApplication,
) -> None:
    peer = Peer(app, settings={WINDOW: 2**20})
    peer.open(1, MANY)
    sent = 0

    def send_on() -> None:
        nonlocal sent
        sent += 1
        if sent < 3000:
            app.only.send(b"%d" % sent, sent=send_on)

    send_on()
    assert peer.answers()[1].messages == [b"%d" % n for n in range(1, 3000)]
    await peer.leave()


@looped
async def test_a_transport_that_is_full_holds_the_answers_back(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 2**30})
    peer.feed(window_update(0, 2**30))
    peer.open(1, MANY)
    peer.wire.room = 100_000
    taken: list[int] = []
    for n in range(10):
        app.only.send(bytes(50_000), sent=lambda n=n: taken.append(n))  # type: ignore[misc]
    assert len(taken) <= 3
    assert len(peer.wire.written) <= 100_000 + 2**16
    while len(taken) < 10:
        before = len(taken)
        peer.wire.take(100_000)
        assert len(taken) > before
    peer.wire.take()
    assert peer.answers()[1].messages == [bytes(50_000)] * 10
    await peer.leave()


@looped
async def test_a_large_answer_leaves_in_one_write(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 2**30})
    peer.feed(window_update(0, 2**30))
    head, data = b"head", bytes(range(250)) * 2400
    peer.ask(1)
    before = peer.wire.writes
    app.only.respond(head, data)
    assert peer.wire.writes == before + 1
    answer = peer.answers()[1]
    assert (answer.messages, answer.status, answer.over) == ([head + data], "0", True)
    await peer.leave()


@looped
async def test_calls_with_large_answers_take_turns_within_one_write(app: ManualApplication) -> None:
    peer = Peer(app)
    for n in range(3):
        peer.ask(2 * n + 1)
    for call in app.calls:
        call.respond(bytes(100_000))
    for n in range(3):
        peer.feed(window_update(2 * n + 1, 2**20))
    peer.frames()
    before = peer.wire.writes
    peer.feed(window_update(0, 2**30))
    assert peer.wire.writes == before + 1
    data = [frame for frame in peer.frames() if isinstance(frame, DataFrame)]
    assert len({frame.stream_id for frame in data[:3]}) == 3
    assert sum(len(frame.data) for frame in data) == 3 * 100_005 - 65_535
    await peer.leave()


@looped
async def test_what_a_full_transport_holds_counts_as_not_taken(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 2**30}, limits=HELD)
    peer.feed(window_update(0, 2**30))
    peer.wire.room = 100_000
    for n in range(2):
        peer.ask(2 * n + 1)
    for call in app.calls:
        call.respond(bytes(800_000))
    unsent = peer.connections.holdings.unsent
    assert unsent.total > 1_500_000
    assert unsent.is_full(peer.connection)
    peer.wire.room = -300_000  # the client takes some
    before = unsent.total
    peer.pass_time(0.0)
    assert unsent.total < before - 300_000
    peer.wire.take(2_000_000)
    assert unsent.total == 0
    await peer.leave()


@looped
async def test_a_large_message_gets_all_the_window_it_needs(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, ONE)
    message = bytes(range(250)) * 10_000
    peer.data(1, prefixed(message)[:100_000])
    (grant,) = (f for f in peer.frames() if isinstance(f, WindowUpdateFrame))
    assert grant.stream_id == 1
    assert STREAM_WINDOW + grant.window_increment >= len(message) + 5
    rest = prefixed(message)[100_000:]
    for start in range(0, len(rest), FRAME_BYTES):
        peer.data(1, rest[start : start + FRAME_BYTES], end=start + FRAME_BYTES >= len(rest))
    assert bytes(app.only.message) == message
    await peer.leave()


@looped
async def test_a_large_message_is_read_straight_into_its_place(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1)
    message = bytes(range(250)) * 2000
    data = prefixed(message)
    frames_ = DataFrame(1, data[:200_000]).serialize() + DataFrame(1, data[200_000:]).serialize()
    peer.feed(frames_[:100_000])
    place = peer.connection.get_buffer(-1)
    assert len(place) == 9 + 200_000 - 100_000  # what the frame still has, and no more
    peer.feed(frames_[100_000:])
    peer.data(1, b"", end=True)
    assert app.only.message == message
    assert isinstance(app.only.message, memoryview)
    assert not app.only.message.readonly
    await peer.leave()


@looped
async def test_the_room_of_a_large_message_is_used_again(app: ManualApplication) -> None:
    peer = Peer(app)
    places: list[int] = []
    for n in range(4):
        message = bytes([n]) * 600_000
        peer.ask(2 * n + 1, message)
        call = app.calls.pop()
        assert call.message == message
        places.append(np.frombuffer(call.message, np.uint8).ctypes.data)
        call.respond(b"")
        del call
    assert len(set(places[1:])) == 1  # the first had no room to begin with, and grew
    await peer.leave()


def cut(data: bytes, lengths: list[int]) -> list[bytes]:
    """Pieces of these lengths, again and again."""
    pieces, turns = [], itertools.cycle(lengths)
    while data:
        length = next(turns)
        pieces.append(data[:length])
        data = data[length:]
    return pieces


@pytest.mark.parametrize("at_once", [1000, ROW_BYTES + 9, 100_000, 2**18])
@pytest.mark.parametrize("lengths", [[ROW_BYTES], [16384], [ROW_BYTES, ROW_BYTES, 5000], [60_000]])
@pytest.mark.parametrize("in_turn", [1, 4])
@looped
async def test_long_messages_are_the_same_whatever_frames_they_come_in(
    app: ManualApplication, lengths: list[int], at_once: int, in_turn: int
) -> None:
    peer = Peer(app)
    message = random.Random(1).randbytes(300_000)
    pieces = cut(prefixed(message), lengths)
    peer.open(1)
    peer.open(3)
    data = b""
    for start in range(0, len(pieces), in_turn):
        for stream_id in (1, 3):
            for piece in pieces[start : start + in_turn]:
                flags = ["END_STREAM"] if piece is pieces[-1] else []
                data += DataFrame(stream_id, piece, flags=flags).serialize()
    await peer.feed_all(data, at_once)
    assert [bytes(call.message) for call in app.calls] == [message, message]
    assert peer.connections.holdings.received.total == 0
    await peer.leave()


@looped
async def test_frames_in_a_row_that_overrun_the_window_reset_their_stream_alone(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    peer.open(3, MANY)
    app.calls[0].pause()
    message = prefixed(bytes(30_000))
    peer.data(1, message)  # it waits, so that the window is not widened
    long = b"\0" + (3_000_000).to_bytes(4)
    row = DataFrame(1, bytes(16384)).serialize() * (STREAM_WINDOW // 16384 + 1)
    await peer.feed_all(DataFrame(1, long).serialize() + row, 2**18)
    assert peer.answers()[1].reset == FLOW_CONTROL_ERROR
    peer.message(3, b"fine")
    assert app.messages == [b"fine"]
    await peer.leave()


@looped
async def test_the_connections_window_is_given_back_now_and_then(app: ManualApplication) -> None:
    peer = Peer(app)
    sent = increments = 0
    for n in range(40):
        peer.ask(2 * n + 1, bytes(999_995))
        app.calls.pop().respond(b"")
        sent += 1_000_000
        for update in peer.frames():
            if isinstance(update, WindowUpdateFrame) and update.stream_id == 0:
                increments += update.window_increment
                assert update.window_increment >= CONNECTION_WINDOW // 2
    assert 0 <= sent - increments < CONNECTION_WINDOW // 2
    await peer.leave()


@looped
async def test_a_paused_stream_gets_no_new_window_until_it_goes_on(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    app.only.pause()
    for n in range(10):
        peer.message(1, b"%d" % n * 100_000)
    peer.data(1, b"", end=True)
    assert (app.messages, app.ends, peer.frames()) == ([], 0, [])
    peer.ask(3)  # no other waits
    assert len(app.calls) == 2
    app.calls[0].resume()
    assert app.messages == []  # not in the middle of what it does
    await asyncio.sleep(0)
    assert [m[:1] for m in app.messages] == [b"%d" % n for n in range(10)]
    assert app.ends == 1
    await peer.leave()


@looped
async def test_a_stream_of_many_tiny_messages_lets_others_have_their_turn(
    app: ManualApplication,
) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    peer.data(1, b"".join(prefixed(b"%d" % n) for n in range(1000)), end=True)
    assert TURN_CALLS * 3 // 4 < len(app.messages) <= TURN_CALLS
    peer.message(3, b"")  # of a stream that has not begun: the end
    assert app.left == 1
    await peer.leave()
    peer = Peer(app)
    peer.open(1, MANY)
    app.messages.clear()
    peer.data(1, b"".join(prefixed(b"%d" % n) for n in range(1000)), end=True)
    turns = 0
    while not app.ends:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 1000 // TURN_CALLS
    assert app.messages == [b"%d" % n for n in range(1000)]
    await peer.leave()


@looped
async def test_a_stream_that_goes_on_gets_its_window_again(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, MANY)
    app.only.pause()
    peer.message(1, bytes(900_000))
    assert peer.frames() == []
    app.only.resume()
    await asyncio.sleep(0)
    (update,) = peer.frames()
    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (1, 900_005)
    await peer.leave()


@looped
async def test_a_client_with_a_smaller_table_hears_that_none_is_used(
    app: ManualApplication,
) -> None:
    peer = Peer(app, settings={SettingsFrame.HEADER_TABLE_SIZE: 0})
    peer.decoder.max_allowed_table_size = 0
    peer.ask(1)
    app.only.respond(b"x")
    assert peer.wire.written[9] == 0x20
    assert peer.answers()[1].status == OK
    await peer.leave()


# Clients that leave, deadlines, silence


@looped
async def test_a_client_that_cancels_or_goes_is_told_of(app: ManualApplication) -> None:
    peer = Peer(app)
    for n in (1, 3):
        peer.ask(n)
    peer.open(5, MANY)
    peer.feed(reset(1, 8))
    assert app.left == 1
    app.calls[0].respond(b"nobody")
    assert 1 not in peer.answers()
    peer.connection.eof_received()
    assert app.left == 3
    assert [call.status for call in peer.ended] == ["CANCELLED"] * 3
    await peer.leave()
    assert app.left == 3


@looped
async def test_a_cancelled_answer_leaves_nothing_behind(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 10})
    peer.ask(1)
    app.only.respond(bytes(1000))
    peer.feed(reset(1, 8))
    peer.answers()
    peer.feed(window_update(0, 1000))
    assert peer.answers() == {}
    assert app.left == 0  # it was answered
    await peer.leave()


@looped
async def test_a_deadline_ends_a_call_even_if_the_client_does_not(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1, MANY, ("grpc-timeout", "3S"))
    peer.ask(3, b"", ("grpc-timeout", "500m"))
    assert app.calls[1].timeout == 0.5
    peer.pass_time(1.0)
    assert peer.answers()[3].status == "4"
    peer.pass_time(1.5)
    assert 1 not in peer.answers()
    peer.pass_time(1.0)
    assert peer.answers()[1].status == "4"
    assert app.left == 2
    await peer.leave()


@looped
async def test_silence_is_asked_about_and_then_ended(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.ask(1)
    peer.pass_time(KEEPALIVE_TIME)
    (ping,) = peer.frames()
    assert isinstance(ping, PingFrame)
    peer.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))
    assert peer.frames() == []
    peer.pass_time(KEEPALIVE_TIME)
    assert len(peer.frames()) == 1
    peer.pass_time(KEEPALIVE_TIMEOUT)
    assert peer.wire.is_closing()
    await peer.leave()
    assert app.left == 1


@looped
async def test_a_client_that_never_begins_is_cut_off(app: ManualApplication) -> None:
    peer = Peer(app, greet=False)
    peer.feed(PREFACE[:5])
    peer.pass_time(LIMITS.header_timeout - 1)
    assert not peer.wire.is_closing()
    peer.feed(PREFACE[5:7])
    peer.pass_time(1)
    assert peer.wire.is_closing()
    await peer.leave()


@looped
async def test_the_connection_that_is_idle_for_longest_makes_room(app: ManualApplication) -> None:
    busy = Peer(app, limits=Limits(max_connections=3))
    busy.ask(1)
    recent, old = Peer(app, beside=busy), Peer(app, beside=busy)
    busy.pass_time(1.0)
    recent.ask(1)
    app.calls[-1].respond(b"")
    recent.frames()
    busy.pass_time(1.0)
    new = Peer(app, beside=busy)
    assert old.goaway() == NO_ERROR
    assert old.wire.is_closing()
    assert recent.goaway() is None
    new.ask(1)
    app.calls[-1].respond(b"welcome")
    assert new.answers()[1].messages == [b"welcome"]
    for peer in (busy, recent, new):
        peer.wire.close()
    await busy.connections.all_closed()


@looped
async def test_while_none_is_idle_only_questions_about_health_are_answered(
    app: ManualApplication,
) -> None:
    busy = Peer(app, limits=Limits(max_connections=1))
    busy.ask(1)
    new = Peer(app, beside=busy)
    new.ask(1)
    refused = new.answers()[1]
    assert refused.status == "14"
    assert "limit of 1 connections" in refused.text
    assert len(app.calls) == 1
    new.open(3, MANY)
    app.calls[-1].finish()
    assert new.answers()[3].status == OK
    busy.wire.close()
    await asyncio.sleep(0)
    new.ask(5)
    assert len(app.calls) == 3
    new.wire.close()
    await busy.connections.all_closed()


@looped
async def test_the_reserve_for_health_gives_up_its_oldest(app: ManualApplication) -> None:
    busy = Peer(app, limits=Limits(max_connections=1))
    busy.ask(1)
    reserve = [Peer(app, beside=busy) for _ in range(RESERVE)]
    for peer in reserve:
        peer.open(1, MANY)
    assert not any(peer.wire.is_closing() for peer in reserve)
    last = Peer(app, beside=busy)
    assert [peer.wire.is_closing() for peer in reserve] == [True] + [False] * (RESERVE - 1)
    for peer in (busy, last, *reserve):
        peer.wire.close()
    await busy.connections.all_closed()


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (frame(HEADERS, 0, 1, b"\x83"), frame(9, 0, 1, b"\x86")),
        (frame(HEADERS, 0, 1, bytes(100))[:20], b"\0"),
    ],
)
@looped
async def test_a_head_that_never_ends_ends_its_connection(
    app: ManualApplication, start: bytes, more: bytes
) -> None:
    peer = Peer(app)
    peer.feed(start)
    for _ in range(29):
        peer.pass_time(1.0)
        peer.feed(more)
    assert not peer.wire.is_closing()
    peer.pass_time(1.0)
    assert peer.wire.is_closing()
    await peer.leave()


@looped
async def test_a_call_whose_message_does_not_come_is_ended(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.open(1)
    peer.open(3, MANY)
    peer.open(5)
    peer.data(5, prefixed(b"x" * 50)[:20])
    peer.pass_time(29.0)
    peer.data(5, b"x" * 10)
    peer.pass_time(2.0)
    found = peer.answers()
    assert set(found) == {1}
    assert (found[1].status, found[1].over) == ("1", True)
    peer.pass_time(30.0)
    assert peer.answers()[5].status == "1"
    assert app.left == 0
    assert set(peer.connection.streams.by_id) == {3}
    await peer.leave()


# The end of the server


@looped
async def test_a_server_that_stops_says_so_first_and_loses_no_call(app: ManualApplication) -> None:
    peer = Peer(app)
    peer.ask(1)
    peer.pass_time(SETTLED)
    peer.connections.drain(0.0)
    goaway_, ping = peer.frames()
    assert isinstance(goaway_, GoAwayFrame)
    assert isinstance(ping, PingFrame)
    assert (goaway_.last_stream_id, goaway_.error_code) == (2**31 - 1, NO_ERROR)
    peer.ask(3)  # was on its way
    peer.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))
    (goaway_,) = peer.frames()
    assert isinstance(goaway_, GoAwayFrame)
    assert goaway_.last_stream_id == 3
    peer.ask(5)  # knows that it was not taken
    assert len(app.calls) == 2
    app.calls[0].respond(b"a")
    assert not peer.wire.ended
    app.calls[1].respond(b"b")
    assert peer.wire.ended
    assert [answer.messages for answer in peer.answers().values()] == [[b"a"], [b"b"]]
    peer.pass_time(LINGER)
    assert peer.wire.is_closing()
    await peer.leave()


@looped
async def test_a_client_that_comes_while_the_server_stops_hears_it_after_its_first_calls(
    app: ManualApplication,
) -> None:
    """gRPC's C core cannot take a GOAWAY that comes with the first SETTINGS."""
    peer = Peer(app, draining=True)
    assert peer.goaway() is None
    peer.ask(1)
    app.calls[0].respond(b"a")
    assert peer.answers()[1].messages == [b"a"]
    peer.pass_time(SETTLED)
    assert peer.goaway() == NO_ERROR
    await peer.leave()


@looped
async def test_an_idle_client_that_does_not_hear_of_the_end_is_left(app: ManualApplication) -> None:
    for greet in (True, False):
        peer = Peer(app, greet=greet)
        peer.connections.drain(0.0)
        peer.pass_time(SETTLED)
        peer.pass_time(ANNOUNCEMENT)
        assert peer.wire.ended
        await peer.leave()


@looped
async def test_a_bug_of_ours_ends_the_connection_and_is_reported(
    app: ManualApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
    peer = Peer(app)
    peer.open(1, MANY)
    monkeypatch.setattr(Streams, "window_update", None)
    peer.feed(window_update(0, 1))
    assert peer.goaway() == INTERNAL_ERROR
    assert len(reported) == app.left == 1
    await peer.leave()


# Memory


HELD = Limits(
    max_body_bytes=3_000_000,
    max_header_bytes=4000,
    max_unsent_bytes=2_000_000,
    max_connection_unsent_bytes=1_000_000,
    max_received_bytes=2_000_000,
    max_connection_received_bytes=1_000_000,
)
ANSWER = b"a" * 300_000


@looped
async def test_a_client_that_takes_no_answers_is_given_no_more_to_hold(
    app: ManualApplication,
) -> None:
    peer = Peer(app, settings={WINDOW: 0}, limits=HELD)
    for n in range(4):
        peer.ask(2 * n + 1)
        app.calls[-1].respond(ANSWER)
    peer.ask(11)
    refused = peer.answers()[11]
    assert refused.status == "8"
    assert "max_connection_unsent_bytes" in refused.text
    assert len(app.calls) == 4
    peer.feed(window_update(0, 10**6) + window_update(1, 400_000))
    assert peer.answers()[1].messages == [ANSWER]
    peer.ask(13)
    assert len(app.calls) == 5
    await peer.leave()
    assert peer.connections.holdings.unsent.total == 0


@looped
async def test_answers_of_calls_that_ran_already_are_not_kept_for_a_client_that_takes_none(
    app: ManualApplication,
) -> None:
    peer = Peer(app, settings={WINDOW: 0}, limits=HELD)
    for n in range(48):
        peer.ask(2 * n + 1)
    for call in app.calls:
        call.respond(ANSWER)
    answers = peer.answers()
    refused = [answers[2 * n + 1] for n in range(4, 48)]
    assert {answer.status for answer in refused} == {"8"}
    assert "max_connection_unsent_bytes" in refused[0].text
    assert peer.connections.holdings.unsent.total < 5 * len(ANSWER)
    peer.feed(window_update(0, 10**6) + window_update(1, 400_000))
    assert peer.answers()[1].messages == [ANSWER]
    await peer.leave()


@looped
async def test_of_a_client_that_takes_some_all_answers_are_kept(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 0}, limits=HELD)
    for n in range(6):
        peer.ask(2 * n + 1)
    app.calls[0].respond(ANSWER)
    peer.feed(window_update(1, 1000))
    for call in app.calls[1:]:
        call.respond(ANSWER)
    assert peer.connections.holdings.unsent.total > 5 * len(ANSWER)
    await peer.leave()


@looped
async def test_a_stream_whose_answers_nobody_takes_ends(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 0}, limits=HELD)
    peer.open(1, MANY)
    left: list[bool] = []
    app.only.on_leave = lambda: left.append(True)
    for _ in range(100):
        app.only.send(ANSWER)
    await turned(lambda: bool(left))
    assert peer.connections.holdings.unsent.total == 0
    await peer.leave()


@looped
async def test_a_client_that_takes_no_answers_for_long_is_cut_off(app: ManualApplication) -> None:
    peer = Peer(app, settings={WINDOW: 0}, limits=HELD)
    for n in range(4):
        peer.ask(2 * n + 1)
        app.calls[-1].respond(ANSWER)
    for _ in range(29):
        peer.pass_time(1.0)
        peer.send(PingFrame(0, b"12345678"))
    peer.connections._sweep_again()
    assert not peer.wire.is_closing()
    peer.now += 1.0
    peer.connections._sweep_again()
    assert peer.wire.is_closing()
    await peer.leave()


@looped
async def test_answers_that_are_not_taken_end_the_oldest_of_those_connections(
    app: ManualApplication,
) -> None:
    stalled = Peer(app, settings={WINDOW: 0}, limits=HELD)
    reader = Peer(app, beside=stalled)
    other = Peer(app, settings={WINDOW: 0}, beside=stalled)
    for n in range(3):
        stalled.ask(2 * n + 1)
        app.calls[-1].respond(ANSWER)
    for n in range(5):
        stalled.now += 1.0
        reader.feed(window_update(0, len(ANSWER) + 5))
        reader.ask(2 * n + 1)
        reader.feed(window_update(2 * n + 1, len(ANSWER) + 5))
        app.calls[-1].respond(ANSWER)
        assert reader.answers()[2 * n + 1].messages == [ANSWER]
        stalled.feed(window_update(1, 1) + window_update(0, 1))  # a little, so as to look alive
    for n in range(3):
        other.ask(2 * n + 1)
        app.calls[-1].respond(ANSWER)
        assert not stalled.wire.is_closing()
    other.ask(7)
    app.calls[-1].respond(ANSWER)
    assert stalled.wire.is_closing()
    assert not other.wire.is_closing()
    assert not reader.wire.is_closing()
    for peer in (other, reader):
        peer.wire.close()
    await stalled.connections.all_closed()
    assert stalled.connections.holdings.unsent.total == 0


@looped
async def test_an_announcement_of_messages_costs_no_memory(app: ManualApplication) -> None:
    peer = Peer(app, limits=Limits())
    tracemalloc.start()
    for n in range(100):
        peer.open(2 * n + 1, MANY)
        peer.data(2 * n + 1, b"\0" + (64 * 2**20).to_bytes(4))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peer.goaway() is None
    assert peak < 100 * 2**19
    await peer.leave()


def half_sent(path: str, kind: str) -> bytes:
    """A part of 300,000 bytes that the application does not get before more comes."""
    if kind == "half a message":
        return b"\0" + (3_000_000).to_bytes(4) + bytes(300_000)
    return prefixed(bytes(300_000))


@pytest.mark.parametrize("path", [ONE, MANY])
@pytest.mark.parametrize("kind", ["half a message", "a whole one without an end"])
@looped
async def test_what_one_client_does_not_end_is_bounded(
    app: ManualApplication, path: str, kind: str
) -> None:
    peer = Peer(app, limits=HELD)
    for n in range(4):
        peer.open(2 * n + 1, path)
        if path == MANY:
            app.calls[-1].pause()
        peer.data(2 * n + 1, half_sent(path, kind))
        if n < 3:
            assert not any(answer.over for answer in peer.answers().values())
    refused = peer.answers()[7]
    assert refused.status == "8"
    assert "max_connection_received_bytes" in refused.text
    assert peer.connections.holdings.received.total < 1_000_000
    peer.ask(9)
    app.calls[-1].respond(b"fine")
    assert peer.answers()[9].messages == [b"fine"]
    await peer.leave()
    assert peer.connections.holdings.received.total == 0


@looped
async def test_what_clients_do_not_end_is_bounded_for_all_of_them(app: ManualApplication) -> None:
    first = Peer(app, limits=HELD)
    others = [Peer(app, beside=first) for _ in range(3)]
    for peer in (first, *others):
        assert not first.wire.is_closing()
        first.now += 1.0
        for n in range(2):
            peer.open(2 * n + 1, ONE)
            peer.data(2 * n + 1, half_sent(ONE, "half a message"))
    assert first.wire.is_closing()
    assert not any(peer.wire.is_closing() for peer in others)
    assert first.connections.holdings.received.total <= 2_000_000
    for peer in others:
        peer.wire.close()
    await first.connections.all_closed()


@pytest.mark.parametrize("path", [ONE, MANY])
@looped
async def test_what_is_read_in_the_end_is_held_no_more(app: ManualApplication, path: str) -> None:
    peer = Peer(app, limits=HELD)
    for n in range(10):
        peer.open(2 * n + 1, path)
        peer.data(2 * n + 1, prefixed(bytes(600_000))[:500_000])
        assert peer.connection.streams.received.count > 400_000
        peer.data(2 * n + 1, prefixed(bytes(600_000))[500_000:])
        peer.data(2 * n + 1, b"", end=True)
        assert peer.connection.streams.received.count == 0
        app.calls[-1].finish()
    assert app.left == 0
    await peer.leave()


@looped
async def test_a_paused_stream_of_tiny_messages_counts_what_they_cost(
    app: ManualApplication,
) -> None:
    peer = Peer(app, limits=HELD)
    peer.open(1, MANY)
    app.only.pause()
    for _ in range(12):
        peer.data(1, bytes(5000))  # a thousand empty messages
    assert peer.answers()[1].status == "8"
    assert app.left == 1
    assert peer.connection.streams.received.count == 0
    await peer.leave()
