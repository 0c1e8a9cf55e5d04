"""server/fronts/pass_on.py: what a front does with streams that have no end."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.http_exchange import MemoryExchange
from wherry.server.calls.terms import as_sent
from wherry.server.dashboard.routes import EVENTS
from wherry.server.fronts.link_protocol import ForwardRequest, ResponsePart
from wherry.server.fronts.pass_on import PassOn, forward_request
from wherry.server.fronts.reply import ForwardedExchange
from wherry.server.http.exchange import HttpRequest, RequestHead
from wherry.server.http.route import Route


def test_a_request_that_is_passed_on_keeps_the_capitals_of_its_headers() -> None:
    ask = ForwardRequest(7, "POST", "/p", "q=1", {"X-User": "ann", "host": "h"}, b"b", "peer")
    asked = ForwardedExchange(ask, lambda told: None)
    assert asked.request.headers == {"x-user": "ann", "host": "h"}
    assert [as_sent(name) for name in asked.request.headers] == ["X-User", "host"]
    sent = msgspec.msgpack.encode(forward_request(asked, 7))
    assert msgspec.msgpack.decode(sent, type=ForwardRequest) == ask


class FakeLink:
    """An owner that the test plays."""

    def __init__(self, name: str = "owner:1") -> None:
        self.name = name
        self.is_open = True
        self.asked: dict[int, Callable[[ResponsePart | None], None]] = {}
        self.asks: list[ForwardRequest] = []
        self.forgotten: list[int] = []

    def forward(
        self, make: Callable[[int], ForwardRequest], told: Callable[[Any], None], size: int = 0
    ) -> int:
        number = len(self.asks)
        self.asks.append(make(number))
        self.asked[number] = told
        return number

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    def tell(self, number: int, body: bytes = b"", *, status: int = 0, ends: bool = False) -> None:
        self.asked[number](ResponsePart(number, status, "text/event-stream", [], body, ends))


def exchange(query: str = "") -> MemoryExchange:
    return MemoryExchange(HttpRequest(RequestHead("GET", EVENTS, query)))


class Front:
    """A front with one owner, and the handler of its events."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.pass_on = PassOn(lambda: self.link)  # type: ignore[arg-type, return-value]
        route = self.pass_on.route(EVENTS, Route({"GET": self._own}, "statistics"))
        self.watch = route.handlers["GET"]
        self.own: list[Any] = []

    def _own(self, exchange: Any) -> None:
        self.own.append(exchange)

    def begun(self) -> MemoryExchange:
        viewer = exchange()
        self.watch(viewer)
        self.link.tell(0, status=200)
        self.link.tell(0, b"event: whole\n\n")
        return viewer


def test_what_the_owner_tells_is_passed_on() -> None:
    front = Front()
    viewer = front.begun()
    front.link.tell(0, b"event: changes\n\n")

    assert viewer.status == 200
    assert viewer.body == b"event: whole\n\nevent: changes\n\n"
    assert front.pass_on.watchers == 1


def test_a_client_that_does_not_read_is_asked_for_again_when_it_does() -> None:
    front = Front()
    viewer = front.begun()
    viewer.congested = True
    front.link.tell(0, b"last\n\n")
    assert front.link.forgotten == [0]

    viewer.congested = False
    assert viewer.on_drain is not None
    viewer.on_drain()
    front.link.tell(1, status=200)
    front.link.tell(1, b"whole again\n\n")

    assert len(front.link.asks) == 2
    assert viewer.body.endswith(b"last\n\nwhole again\n\n")


def test_a_client_that_leaves_is_forgotten_also_while_it_does_not_read() -> None:
    front = Front()
    viewer = front.begun()
    viewer.congested = True
    front.link.tell(0, b"last\n\n")
    viewer.leave()

    assert front.link.forgotten == [0]
    assert front.pass_on.watchers == 0


@pytest.mark.parametrize("ended", ["by the owner", "with the link", "by the front"])
def test_a_stream_ends_once_whoever_ends_it(ended: str) -> None:
    front = Front()
    viewer = front.begun()
    if ended == "by the owner":
        front.link.tell(0, ends=True)
    elif ended == "with the link":
        front.link.asked[0](None)
    else:
        front.pass_on.drain()

    assert viewer.answered.done()
    assert front.pass_on.watchers == 0


def test_a_refusal_of_the_owner_is_the_answer() -> None:
    front = Front()
    viewer = exchange()
    front.watch(viewer)
    front.link.tell(0, b'{"error": "too many"}', status=429, ends=True)

    assert (viewer.status, viewer.json) == (429, {"error": "too many"})
