"""What does an owner do with what a front sends? The test is the front, at the end of a socket."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import until
from wherry.core.workers.encoding import header
from wherry.core.workers.loop import new_event_loop
from wherry.core.workers.message_socket import MessageSocket
from wherry.server.fronts.link_protocol import (
    CancelRows,
    Consumed,
    ForwardRequest,
    FromFront,
    FromOwner,
    Hello,
    LinkMessage,
    OneRequest,
    OwnedModels,
    Response,
    ResponsePart,
    RowAnswers,
    Rows,
    RowsRefused,
    Seen,
)
from wherry.server.fronts.owner import RowsOwner
from wherry.server.http.exchange import Exchange
from wherry.server.v2.common import Common


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    if "bad" in text:
        raise ValueError("no such word")
    return [one.upper() for one in text]


@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


class Peer:
    """A front that says what the test says."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._messages = MessageSocket(sock, sock, FromOwner, copies=False)

    async def send(self, *messages: LinkMessage) -> None:
        for message in messages:
            self._messages.add(message)
        assert await asyncio.to_thread(self._messages.write)

    async def receive(self, kind: type[Any] | None = None) -> Any:
        """The next message (of this kind)."""
        while True:
            message = await asyncio.to_thread(self._messages.receive)
            if kind is None or isinstance(message, kind):
                return message

    async def says_nothing(self) -> bool:
        """Whether nothing comes for a tenth of a second."""
        return not (await asyncio.to_thread(select.select, [self.sock], [], [], 0.1))[0]

    async def hello(self) -> dict[str, int]:
        """Say hello; the numbers of the models by name."""
        await self.send(Hello("test"))
        models = await self.receive(OwnedModels)
        await self.send(Seen(models.revision))
        return {card.config.name: card.number for card in models.cards}


class Owner:
    """An owner whose fronts are peers."""

    def __init__(self, runtime: wherry.Runtime, rows: RowsOwner) -> None:
        self.runtime = runtime
        self.rows = rows

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[Peer]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = self.rows.accept(
            MessageSocket(ours, ours, FromFront, copies=False), lambda job: job()
        )
        with theirs:
            theirs.settimeout(10)
            yield Peer(theirs)
        connection.close()
        await asyncio.sleep(0)


def answered(exchange: Exchange) -> None:
    exchange.respond(200, bytes(exchange.request.body))


def with_owner(test: Callable[[Owner], Coroutine[Any, Any, None]], **common: Any) -> None:
    """Run a test beside an owner, in its loop."""

    async def main() -> None:
        runtime = wherry.Runtime(shout, count)
        await asyncio.to_thread(runtime.start)
        try:
            rows = RowsOwner(runtime, Common(**common), answered, None)
            rows.start()
            await test(Owner(runtime, rows))
            assert rows.connections == []
            assert rows.common.admission.in_flight == 0
        finally:
            await asyncio.to_thread(runtime.close)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 30))


def test_rows_of_a_bundle_are_answered_and_a_bad_one_fails_alone() -> None:
    async def test(owner: Owner) -> None:
        async with owner.peer() as peer:
            number = (await peer.hello())["shout"]
            await peer.send(Rows(number, 5, 4, {"text": ["a", "bad", "c", "d"]}, ""))
            outcomes: dict[int, str] = {}
            while len(outcomes) < 4:
                message = await peer.receive()
                if isinstance(message, RowAnswers):
                    outcomes |= zip(message.ids, message.columns["output"], strict=True)
                elif isinstance(message, RowsRefused):
                    outcomes |= dict.fromkeys(message.ids, message.error)
            assert outcomes == {5: "A", 6: "ModelFailed", 7: "C", 8: "D"}

    with_owner(test)


def test_the_rows_of_several_fronts_are_counted_as_requests_of_their_own() -> None:
    async def test(owner: Owner) -> None:
        async with owner.peer() as one, owner.peer() as other:
            number = (await one.hello())["shout"]
            await other.hello()
            await one.send(Rows(number, 0, 3, {"text": ["a", "b", "c"]}, ""))
            await other.send(Rows(number, 0, 2, {"text": ["d", "e"]}, ""))
            got = [(await one.receive(RowAnswers)).ids, (await other.receive(RowAnswers)).ids]
            assert [set(ids) for ids in got] == [{0, 1, 2}, {0, 1}]
            counted = owner.runtime.model("shout").statistics
            assert (counted.success.count, counted.inference_count) == (5, 5)

    with_owner(test)


def test_a_stream_stops_at_its_window_until_the_reader_has_consumed() -> None:
    async def test(owner: Owner) -> None:
        async with owner.peer() as peer:
            number = (await peer.hello())["count"]
            columns = {"n": np.array([200])}
            await peer.send(
                OneRequest(number, 1, 1, columns, "", "", None, 0, None, None, None, streams=True)
            )
            came = [await peer.receive(Response) for _ in range(64)]
            assert [one.columns["output"][0] for one in came] == list(range(64))
            assert not any(one.ends for one in came)
            assert await peer.says_nothing()
            await peer.send(Consumed(number, 1, 64))
            rest = [await peer.receive(Response) for _ in range(64)]
            assert rest[-1].columns["output"][0] == 127
            await peer.send(CancelRows(number, [1]))
            assert (await peer.receive(RowsRefused)).error == "Cancelled"

    with_owner(test)


def test_what_a_front_waits_for_is_cancelled_when_it_goes() -> None:
    async def test(owner: Owner) -> None:
        async with owner.peer() as peer:
            number = (await peer.hello())["count"]
            columns = {"n": np.array([10_000])}
            await peer.send(
                OneRequest(number, 1, 1, columns, "", "", None, 0, None, None, None, streams=True)
            )
            await peer.receive(Response)
        counted = owner.runtime.model("count").statistics
        await asyncio.to_thread(until, lambda: bool(counted.failures["CANCELED"]))

    with_owner(test)


def test_a_request_beyond_max_in_flight_is_refused_for_all_fronts_together() -> None:
    from wherry.server.calls.admission import Admission

    async def test(owner: Owner) -> None:
        owner.rows.common.admission.max_in_flight = 2
        async with owner.peer() as one, owner.peer() as other:
            number = (await one.hello())["shout"]
            await other.hello()
            await one.send(Rows(number, 0, 3, {"text": ["a", "b", "c"]}, ""))
            refused = await one.receive(RowsRefused)
            assert (refused.ids, refused.error) == ([2], "Overloaded")
            assert refused.more["retry_after"]
            assert set((await one.receive(RowAnswers)).ids) == {0, 1}

    with_owner(test, admission=Admission(2))


def test_a_model_that_is_unloaded_is_refused_and_said_to_be_gone() -> None:
    async def test(owner: Owner) -> None:
        async with owner.peer() as peer:
            number = (await peer.hello())["shout"]
            await asyncio.to_thread(owner.runtime.unload, "shout")
            models = await peer.receive(OwnedModels)
            assert [card.config.name for card in models.cards] == ["count"]
            await peer.send(Seen(models.revision), Rows(number, 0, 1, {"text": ["a"]}, ""))
            assert (await peer.receive(RowsRefused)).error == "ModelNotReady"

    with_owner(test)


def test_the_answer_to_a_post_waits_until_every_front_knows_the_models() -> None:
    async def test(owner: Owner) -> None:
        async with owner.peer() as one, owner.peer() as other:
            await one.hello()
            await other.hello()
            await asyncio.to_thread(owner.runtime.unload, "count")
            await one.send(ForwardRequest(3, "POST", "/", "", {}, b"x", None))
            revision = -1
            while revision < owner.rows.revision:
                revision = (await one.receive(OwnedModels)).revision
            await one.send(Seen(revision))
            assert await one.says_nothing()
            await other.send(Seen(revision))
            assert (await one.receive(ResponsePart)).body == b"x"

    with_owner(test)


def test_a_front_that_hangs_does_not_keep_others_from_their_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wherry.server.fronts.owner.KNOW", 0.05)

    async def test(owner: Owner) -> None:
        async with owner.peer() as one, owner.peer() as hangs:
            await one.hello()
            await hangs.hello()
            await asyncio.to_thread(owner.runtime.unload, "count")
            await one.send(ForwardRequest(3, "POST", "/", "", {}, b"x", None))
            assert (await one.receive(ResponsePart)).body == b"x"

    with_owner(test)


HOSTILE: dict[str, Callable[[int], list[LinkMessage]]] = {
    "no hello": lambda number: [Rows(number, 0, 1, {"text": ["a"]}, "")],
    "more rows than values": lambda number: [
        Hello("test"), Rows(number, 0, 9, {"text": ["a"]}, "")
    ],
    "rows without length": lambda number: [
        Hello("test"), Rows(number, 0, 1, {"text": 5}, "")
    ],
    "no rows": lambda number: [
        Hello("test"), Rows(number, 0, 0, {"text": []}, "")
    ],
    "a missing input": lambda number: [
        Hello("test"), Rows(number, 0, 1, {}, "")
    ],
    "an input of another kind": lambda number: [
        Hello("test"), Rows(number, 0, 2, {"text": [5, None]}, "")
    ],
    "an array for text": lambda number: [
        Hello("test"),
        Rows(number, 0, 2, {"text": np.zeros((2, 3))}, ""),
    ],
    "negative rows": lambda number: [
        Hello("test"),
        OneRequest(number, 1, -4, {"text": []}, "", "", None, 0, None, None, None, False),
    ],
    "a stream of a model that has none": lambda number: [
        Hello("test"),
        OneRequest(number, 1, 1, {"text": ["a"]}, "", "", None, 0, None, None, None, True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_front_that_errs_harms_no_other(name: str) -> None:
    """It gets an error, or its link is closed; the other front is answered all the same."""

    async def test(owner: Owner) -> None:
        async with owner.peer() as good:
            number = (await good.hello())["shout"]
            async with owner.peer() as bad:
                await bad.send(*HOSTILE[name](number))
                try:
                    while not isinstance(await bad.receive(), RowsRefused):
                        pass
                except (EOFError, OSError):
                    pass
            await good.send(Rows(number, 0, 1, {"text": ["a"]}, ""))
            assert (await good.receive(RowAnswers)).columns == {"output": ["A"]}

    with_owner(test)


@pytest.mark.parametrize(
    "bytes_",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        header(5) + b"\xc1\xc1\xc1\xc1\xc1",
        struct.pack("<IIHH", 2**31, 0, 0, 0x7957),
    ],
)
def test_what_is_no_message_ends_its_link_only(bytes_: bytes) -> None:
    async def test(owner: Owner) -> None:
        async with owner.peer() as good, owner.peer() as bad:
            number = (await good.hello())["shout"]
            await asyncio.to_thread(bad.sock.sendall, bytes_)
            with pytest.raises((EOFError, OSError)):
                await bad.receive()
            await good.send(Rows(number, 0, 1, {"text": ["a"]}, ""))
            assert (await good.receive(RowAnswers)).columns == {"output": ["A"]}

    with_owner(test)
