"""Does an owner see an HTTP request as the front has read it?"""

from __future__ import annotations

import msgspec

from wherry.server.calls.header_names import as_sent
from wherry.server.remote.link_protocol import Ask
from wherry.server.rows.forwarded import ForwardedExchange
from wherry.server.rows.to_owner import ask_of


def test_a_request_that_is_passed_on_keeps_the_capitals_of_its_headers() -> None:
    ask = Ask(7, "POST", "/p", "q=1", {"X-User": "ann", "host": "h"}, b"b", "peer")
    asked = ForwardedExchange(ask, lambda told: None)
    assert asked.request.headers == {"x-user": "ann", "host": "h"}
    assert [as_sent(name) for name in asked.request.headers] == ["X-User", "host"]
    sent = msgspec.msgpack.encode(ask_of(asked, 7))
    assert msgspec.msgpack.decode(sent, type=Ask) == ask
