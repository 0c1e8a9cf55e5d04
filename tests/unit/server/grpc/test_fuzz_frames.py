"""Can any bytes, cut anywhere, crash the connection, hang it, or leave a call behind?

No socket: bytes go in through the methods that the loop calls, so thousands of inputs are cheap.
"""

import asyncio
import gc
import gzip
import random
import weakref
from collections.abc import Callable

import pytest
from hyperframe.frame import DataFrame, HeadersFrame
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.unit.server.grpc.raw import MANY, ONE, WATCH, ManualApplication, Peer, prefixed, turned
from wherry.core.values.datatypes import Buffer
from wherry.server.connections.limits import Limits
from wherry.server.grpc import frames
from wherry.server.grpc.rpc import Rpc


class Whim(ManualApplication):
    """Answers as the dice fall, now or later."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice

    def __call__(self, rpc: Rpc) -> None:
        super().__call__(rpc)
        if self.dice.random() < 0.7:
            self.act(self.dice.choice(self.calls))

    def act(self, rpc: Rpc) -> None:
        size = self.dice.choice([0, 10, 1000, 100_000])
        if not self.methods[rpc.path].gives_stream:
            rpc.respond(bytes(size))
            return
        actions: list[Callable[[], None]] = [
            lambda: rpc.send(bytes(size), sent=self.another_acts),
            rpc.finish,
            lambda: rpc.fail("INTERNAL", "x" * 100),
            rpc.pause,
            rpc.resume,
        ]
        self.dice.choice(actions)()

    def another_acts(self) -> None:
        if self.dice.random() < 0.3:
            self.act(self.dice.choice(self.calls))


def mixture(dice: random.Random, peer: Peer) -> bytes:
    """Frames that are mostly right."""
    pieces = []
    for _ in range(dice.randint(1, 30)):
        stream = dice.choice([1, 3, 5, 7, 9, 9, 11, 0, 2])
        ends = ["END_STREAM"] if dice.random() < 0.4 else []
        match dice.randrange(9):
            case 0 | 1 | 2:
                block = peer.encoder.encode(peer.head(dice.choice([ONE, MANY, WATCH, "/no"])))
                found = HeadersFrame(stream or 1, block, flags=["END_HEADERS", *ends])
                pieces.append(found.serialize())
            case 3 | 4 | 5:
                text = prefixed(dice.randbytes(dice.choice([0, 5, 500, 200_000])))
                if dice.random() < 0.2:
                    text = text[: dice.randrange(len(text))]
                pieces.append(DataFrame(stream or 1, text, flags=ends).serialize())
            case 6:
                pieces.append(frames.window_update(stream, dice.choice([0, 1, 10**6, 2**31 - 1])))
            case 7:
                pieces.append(frames.reset(stream, 8))
            case _:
                kind, flags = dice.randrange(12), dice.randrange(256)
                payload = dice.randbytes(dice.choice([0, 4, 5, 6, 8, 300]))
                pieces.append(frames.frame(kind, flags, stream, payload))
    data = bytearray(b"".join(pieces))
    for _ in range(dice.choice([0, 0, 0, 1, 5])):
        position = dice.randrange(len(data) or 1)
        if dice.random() < 0.5:
            data[position : position + 1] = dice.randbytes(1)
        else:
            del data[position : position + dice.choice([1, 9, 300])]
    return bytes(data)


async def talk(seed: int) -> None:
    dice = random.Random(seed)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    app = Whim(dice)
    peer = Peer(app, settings={4: dice.choice([0, 20, 65535, 2**20])})
    if dice.random() < 0.3:
        peer.wire.room = 50_000
    data = mixture(dice, peer)
    while data and not peer.wire.is_closing():
        size = dice.choice([1, 8, 9, 100, 10_000, 10**6])
        peer.feed(data[:size], dice.choice([1, 9, 10**6]) if size < 1000 else 10**6)
        data = data[size:]
        if not peer.wire.reading:
            peer.wire.take(dice.choice([50_000, None]))
        if dice.random() < 0.1:
            await asyncio.sleep(0)
        if dice.random() < 0.02:
            peer.connections.drain(0.0)
    for _ in range(3):
        await asyncio.sleep(0)
        peer.pass_time(0.5)
    peer.wire.take()
    peer.frames()  # whole ones, and nothing else
    await peer.leave()
    assert failures == []
    assert [call for call in app.calls if not call.ended] == []
    assert len(peer.ended) == len(app.calls)


@examples(3)
@given(st.integers(0, 2**32))
def test_no_mixture_of_frames_harms_the_connection(seed: int) -> None:
    asyncio.run(talk(seed))


class Ledger(ManualApplication):
    """Writes down the messages of each call, in the order in which they begin, and answers it."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.got: list[list[bytes]] = []

    def __call__(self, rpc: Rpc) -> None:
        got: list[bytes] = []
        self.got.append(got)

        def take(message: Buffer) -> None:
            got.append(bytes(message))
            if self.dice.random() < 0.2:
                rpc.pause()
                asyncio.get_running_loop().call_soon(rpc.resume)

        rpc.on_message = take
        rpc.on_half_close = rpc.finish
        if not self.methods[rpc.path].takes_stream:
            got.append(bytes(rpc.message))
            rpc.respond(b"")


def stream_frames(dice: random.Random, stream_id: int, messages: list[bytes]) -> list[bytes]:
    """DATA frames of these messages, cut anywhere; the last ends the stream, or one behind it."""
    data = b"".join(
        prefixed(gzip.compress(message, 1), 1) if dice.random() < 0.3 else prefixed(message)
        for message in messages
    )
    found = []
    ends_with_data = bool(data) and dice.random() < 0.5
    while data:
        size = dice.choice([1, 5, 300, 10_000, len(data), len(data)])
        frame = DataFrame(stream_id, data[:size])
        data = data[size:]
        if dice.random() < 0.2:
            frame.flags.add("PADDED")
            frame.pad_length = dice.randrange(256)
        if ends_with_data and not data:
            frame.flags.add("END_STREAM")
        found.append(frame.serialize())
    if not ends_with_data:
        found.append(DataFrame(stream_id, flags=["END_STREAM"]).serialize())
    return found


def mixed(dice: random.Random, queues: list[list[bytes]], go_on: float) -> list[bytes]:
    """Some pieces of queues, each in its order."""
    pieces = []
    while any(queues) and dice.random() < go_on:
        pieces.append(dice.choice([queue for queue in queues if queue]).pop(0))
    return pieces


async def converse(seed: int) -> None:
    """Calls side by side, as a client of gRPC makes them."""
    dice = random.Random(seed)
    app = Ledger(dice)
    peer = Peer(app)
    sent: list[list[bytes]] = []
    queues: list[list[bytes]] = []
    pieces: list[bytes] = []
    for stream_id in range(1, 2 * dice.randint(1, 6), 2):
        path = dice.choice([ONE, MANY])
        count = 1 if path == ONE else dice.choice([0, 1, 1, 2, 5])
        sent.append([dice.randbytes(dice.choice([0, 1, 300, 70_000])) for _ in range(count)])
        block = peer.encoder.encode(peer.head(path, ("grpc-encoding", "gzip")))
        pieces.append(HeadersFrame(stream_id, block, flags=["END_HEADERS"]).serialize())
        queues.append(stream_frames(dice, stream_id, sent[-1]))
        pieces += mixed(dice, queues, 0.8)
    pieces += mixed(dice, queues, 1.0)
    await peer.feed_all(b"".join(pieces), dice.choice([100, 5000, 2**16]))
    await turned(lambda: not peer.connection.streams.by_id)
    assert sorted(app.got) == sorted(sent)
    assert [call.status for call in peer.ended] == ["OK"] * len(sent)
    assert peer.connection.streams.received.count == 0
    await peer.leave()


@given(st.integers(0, 2**32))
def test_each_call_gets_its_messages_however_they_are_cut_and_mixed(seed: int) -> None:
    asyncio.run(converse(seed))


@examples(2)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_harm_the_connection(data: bytes, greet: bool) -> None:
    async def main() -> None:
        peer = Peer(ManualApplication(), greet=greet)
        peer.feed(data, 7)
        peer.frames()
        await peer.leave()

    asyncio.run(main())


@pytest.mark.parametrize("max_connections", [1, 0])
def test_nothing_is_left_to_the_garbage_collector(max_connections: int) -> None:
    """Of a connection that has room, nor of one that is only for questions about health."""

    async def main() -> "weakref.ref[object]":
        app = ManualApplication()
        peer = Peer(app, limits=Limits(max_connections=max_connections))
        peer.ask(1, bytes(200_000))
        peer.open(3, MANY)
        peer.message(3, bytes(200_000))
        peer.data(3, prefixed(bytes(1000))[:-1])
        connection: weakref.ref[object] = weakref.ref(peer.connection)
        if max_connections:
            app.calls[0].respond(b"")
        await peer.leave()
        app.calls.clear()
        vars(peer).clear()  # it is in a cycle of its own
        return connection

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main())() is None
    finally:
        gc.enable()
