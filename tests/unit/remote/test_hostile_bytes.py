"""Can a process that has the token hurt an owner, or the other fronts, with what it sends?"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from tests.fakes import PATIENCE, until
from tests.properties import examples
from wherry.remote.handshake import Challenge, Identity, Proof, Unwelcome, Welcome, parsed
from wherry.remote.members import address_of
from wherry.remote.messages import (
    PROTOCOL,
    CancelRows,
    Consumed,
    FromFront,
    FromOwner,
    FrontSettings,
    Hello,
    OneRequest,
    OwnedModels,
    Rows,
    Seen,
)
from wherry.remote.tcp import Credentials, connected, greet_owner, message_socket
from wherry.server.server import Server
from wherry.testing import local_server
from wherry.workers.encoding import MessageDecoder, MessageEncoder
from wherry.workers.frames import Garbage, header
from wherry.workers.message_socket import FrameSocket

MOST = 2**20
DECODERS = [MessageDecoder(kind, copies=False) for kind in (FromFront, FromOwner)]


@wherry.model
def double(
    x: Annotated[np.ndarray, wherry.FP32[2]], text: str = ""
) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return 2 * x


@wherry.model(max_batch_size=8)
def hello(name: list[str]) -> list[str]:
    return [f"hello {one}" for one in name]


# Bytes


def bodies() -> list[bytes]:
    """The bodies of messages that are right, to be spoilt."""
    encoder = MessageEncoder(inline=True)
    x = np.zeros((2, 2), np.float32)
    messages = [
        Hello(PROTOCOL, "1.0", "front", True),
        Rows(0, 0, 2, {"x": x, "name": ["a", "b"]}, ""),
        OneRequest(0, 1, 1, {"x": x}, "", "id", 1.0, 0, {"a": [1]}, None, ["y"], False),
        CancelRows(0, [1, 2]),
        Consumed(0, 1, 1),
    ]
    return [encoder.frame(one, slab=False)[12:] for one in messages]


@examples(30)
@given(
    st.sampled_from(bodies()),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8),
    st.integers(0, 10**6),
)
def test_a_spoilt_message_is_decoded_or_garbage(
    body: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    spoilt = bytearray(body)
    for place, value in changes:
        spoilt[place % len(spoilt)] = value
    data = memoryview(spoilt[: cut % (len(spoilt) + 1) or None])
    for decoder in DECODERS:
        with suppress(Garbage):
            decoder.decode(data)


@examples(30)
@given(st.binary(max_size=200), st.sampled_from([Challenge, Proof, Welcome | Unwelcome]))
def test_whatever_comes_in_a_handshake_is_a_step_or_garbage(body: bytes, kind: Any) -> None:
    with suppress(Garbage):
        parsed(body, kind)


def array(dtype: bytes, shape: tuple[int, ...], data: bytes = b"", where: int = 0) -> Any:
    """An array as an attacker may write it."""
    head = struct.pack("<B8sB", where, dtype, len(shape))
    return msgspec.msgpack.Ext(1, head + struct.pack(f"<{len(shape)}Q", *shape) + data)


@pytest.mark.parametrize(
    "column",
    [
        array(b"<f4", (2**40,)),
        array(b"<f4", (2**63, 2**63)),
        array(b"<f4", (-1 % 2**64, 4), bytes(16)),
        array(b"|O", (1,), bytes(8)),
        array(b"nonsense", (1,), bytes(8)),
        array(b"<f4", (4,), bytes(15)),
        array(b"<f4", (1,), bytes(8), where=1),
        array(b"<f4", (1,), bytes(8), where=2),
        array(b"<f4", (1,) * 255, bytes(4)),
        msgspec.msgpack.Ext(2, b"x"),
        msgspec.msgpack.Ext(1, b""),
    ],
)
def test_an_array_that_cannot_be_is_garbage(column: Any) -> None:
    body = msgspec.msgpack.encode(["Rows", 0, 0, 1, {"x": column}, ""])
    with pytest.raises(Garbage):
        MessageDecoder(FromFront, copies=False).decode(memoryview(body))


def test_deep_nesting_is_garbage() -> None:
    body = msgspec.msgpack.encode(["Rows", 0, 0, 1, {"x": 0}, ""])
    deep = body.replace(b"\xa1x\x00", b"\xa1x" + b"\x91" * 100_000 + b"\x00")
    with pytest.raises(Garbage):
        MessageDecoder(FromFront, copies=False).decode(memoryview(deep))


# A front with the token that does not do what it should


class Hostile:
    """The link of a front that sends what it likes. Blocking."""

    def __init__(self, address: str) -> None:
        async def greet() -> socket.socket:
            sock = await connected(*address_of(address))
            try:
                await greet_owner(
                    sock, Credentials(Identity(PROTOCOL, wherry.__version__, "x"), b"")
                )
            except BaseException:
                sock.close()
                raise
            return sock

        self.sock = asyncio.run(greet())
        self.sock.settimeout(PATIENCE)
        self.messages: FrameSocket = message_socket(
            self.sock, FromOwner, receives=2**28, sends=2**28
        )
        self.messages.wait = lambda *_: None

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.messages.close()

    def hello(self) -> dict[str, int]:
        """The numbers of the owner's models."""
        self.messages.send(Hello(PROTOCOL, wherry.__version__, "x", False))
        settings, told = self.messages.receive(), self.messages.receive()
        assert isinstance(settings, FrontSettings)
        assert (settings.tenant_key, settings.regions) == (b"", [])
        assert isinstance(told, OwnedModels)
        self.messages.send(Seen(told.revision))
        return {card.config.name: card.number for card in told.cards}

    def is_closed(self) -> bool:
        """Wait until the owner has closed the link."""
        with suppress(ConnectionResetError):
            while self.sock.recv(4096):
                pass
        return True


@pytest.fixture(scope="module")
def owner() -> Iterator[Server]:
    with local_server(hello, double, rows_port=0, rows_max_message=MOST) as serving:
        yield serving


def rows(numbers: dict[str, int], model: str, columns: dict[str, Any], count: int = 1) -> Rows:
    return Rows(numbers[model], 0, count, columns, "")


def one(numbers: dict[str, int], columns: dict[str, Any], count: int = 1) -> OneRequest:
    return OneRequest(
        numbers["double"], 0, count, columns, "", "", None, 0, None, None, None, False
    )


X = np.zeros((1, 2), np.float32)
#: Each ends the link.
FATAL: list[Callable[[dict[str, int]], Any]] = [
    lambda n: rows(n, "hello", {"name": ["a"]}, 2),
    lambda n: rows(n, "hello", {"name": ["a"]}, 0),
    lambda n: rows(n, "hello", {"name": ["a"]}, -1),
    lambda n: rows(n, "hello", {}, 2**31),
]
#: Each is refused, and nothing else happens.
REFUSED: list[Callable[[dict[str, int]], Any]] = [
    lambda n: rows(n, "hello", {}),
    lambda n: rows(n, "hello", {"name": ["a"], "other": ["b"]}),
    lambda n: rows(n, "hello", {"name": [1]}),
    lambda n: rows(n, "hello", {"name": X}),
    lambda n: one(n, {"x": X.astype(np.float64)}),
    lambda n: one(n, {"x": np.zeros((1, 3), np.float32)}),
    lambda n: one(n, {"x": np.zeros((), np.float32)}),
    lambda n: one(n, {"x": [[0.0, 0.0]]}),
    lambda n: one(n, {"x": X, "text": [None]}),
    lambda n: Rows(10**6, 0, 1, {"name": ["a"]}, ""),
]


@pytest.mark.parametrize("make", FATAL)
def test_a_message_that_contradicts_itself_ends_its_link_alone(
    owner: Server, make: Callable[[dict[str, int]], Any]
) -> None:
    with Hostile(owner.rows_address) as bad, Hostile(owner.rows_address) as good:
        numbers = good.hello()
        bad.messages.send(make(bad.hello()))
        assert bad.is_closed()
        good.messages.send(rows(numbers, "hello", {"name": ["x"]}))
        assert good.messages.receive().columns == {"output": ["hello x"]}


@pytest.mark.parametrize("make", REFUSED)
def test_a_request_that_does_not_fit_its_model_is_refused(
    owner: Server, make: Callable[[dict[str, int]], Any]
) -> None:
    with Hostile(owner.rows_address) as bad:
        numbers = bad.hello()
        bad.messages.send(make(numbers))
        assert type(bad.messages.receive()).__name__ == "RowsRefused"
        bad.messages.send(rows(numbers, "hello", {"name": ["x"]}))
        assert bad.messages.receive().columns == {"output": ["hello x"]}


@pytest.mark.parametrize(
    "data",
    [
        header(MOST + 1, most=2**30),
        header(2**30, most=2**30),
        b"\xff" * 12,
        header(3) + b"\xc1\xc1\xc1",
        header(1, 2**32 - 1, 1) + b"\xc0",
        header(1, flags=1) + b"\xc0",
    ],
)
def test_what_is_no_frame_ends_the_link(owner: Server, data: bytes) -> None:
    with Hostile(owner.rows_address) as bad:
        bad.hello()
        bad.sock.sendall(data)
        assert bad.is_closed()


def test_a_front_says_hello_first(owner: Server) -> None:
    with Hostile(owner.rows_address) as bad:
        bad.messages.send(Seen(0))
        assert bad.is_closed()


def test_a_stranger_that_sends_much_is_cut_off_at_once(owner: Server) -> None:
    with socket.create_connection(address_of(owner.rows_address)) as sock:
        sock.settimeout(PATIENCE)
        sent = 0
        with suppress(ConnectionResetError, BrokenPipeError):
            while sent < 2**30:
                sent += sock.send(header(2**20) + bytes(2**16))
    assert sent < 2**30


def test_strangers_cannot_take_all_places(owner: Server) -> None:
    address = address_of(owner.rows_address)
    held = [socket.create_connection(address) for _ in range(80)]
    try:
        refused = 0
        for sock in held:
            sock.settimeout(PATIENCE)
        for sock in held:
            refused += not sock.recv(1)
        assert refused >= 80 - 64
    finally:
        for sock in held:
            sock.close()

    def is_let_in() -> bool:
        # The owner may not have seen yet that the others have left.
        with suppress(OSError, EOFError), Hostile(owner.rows_address) as good:
            return bool(good.hello())
        return False

    until(is_let_in)
