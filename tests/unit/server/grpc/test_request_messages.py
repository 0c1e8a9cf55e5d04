"""server/grpc/request_messages.py: the messages of one stream, without a connection."""

import asyncio
import gzip

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.grpc.raw import looped, prefixed, turned
from wherry.core.values.datatypes import Buffer
from wherry.server.calls.offload import Offload
from wherry.server.connections.held import HeldBytes, KeptBuffers
from wherry.server.grpc.request_messages import (
    PACKED_BYTES,
    MessageReading,
    RequestMessages,
)
from wherry.server.grpc.work import (
    TurnBudget,
)

MAX_BYTES = 100_000


class Receiver:
    """A call that writes down what it gets."""

    def __init__(self, *, one: bool = False, coding: str = "identity", full: int = 10**9) -> None:
        self.ended = False
        self.got: list[bytes] = []
        self.ends = 0
        self.grants = 0
        self.refused = ""
        self.reading = MessageReading(MAX_BYTES, TurnBudget(), Offload(), KeptBuffers())
        self.received = HeldBytes(lambda count: count > full)
        self.messages = RequestMessages(self, coding, self.reading, self.received, one=one)

    def take_message(self, message: Buffer) -> None:
        self.got.append(bytes(message))

    def take_end(self) -> None:
        self.ends += 1

    def grant(self) -> None:
        self.grants += 1

    def refuse(self, code: str, text: str, metadata: object = ()) -> None:
        self.refused = code
        self.ended = True
        self.messages.cancel()

    def feed(self, data: bytes) -> None:
        self.messages.feed(memoryview(data))
        self.messages.recount()


@looped
async def test_a_message_that_is_being_unpacked_is_not_stuck_and_holds_up_the_others() -> None:
    call = Receiver(coding="gzip")
    large = bytes(range(256)) * 390
    packed = gzip.compress(large, 0)
    assert len(packed) > PACKED_BYTES
    call.feed(prefixed(packed, flag=1) + prefixed(b"next"))
    assert call.got == []
    assert not call.messages.is_stuck(1e9, 1.0)
    await turned(lambda: len(call.got) == 2)
    assert call.got == [large, b"next"]
    assert call.received.count == 0


@given(
    st.lists(st.binary(max_size=300), max_size=20),
    st.integers(1, 400),
    st.sets(st.integers(0, 50)),
)
def test_whenever_it_pauses_the_messages_and_their_end_come_in_order(
    texts: list[bytes], at_once: int, pauses: set[int]
) -> None:
    async def main() -> None:
        call = Receiver()
        data = b"".join(map(prefixed, texts))
        for n, begin in enumerate(range(0, len(data), at_once)):
            (call.messages.pause if n in pauses else call.messages.resume)()
            call.feed(data[begin : begin + at_once])
            if n % 3 == 0:
                await asyncio.sleep(0)
            assert call.got == texts[: len(call.got)]
        call.messages.end()
        call.messages.resume()
        await turned(lambda: call.ends == 1)
        assert call.got == texts
        assert call.received.count == 0
        await asyncio.sleep(0)
        assert call.ends == 1

    asyncio.run(main())
