"""Which requests does the transport refuse itself, and with which answer?"""

from collections.abc import Callable

import pytest

from wherry.server.access.origins import Binding, OriginCheck, Origins
from wherry.server.calls.header_names import as_sent
from wherry.server.connections.limits import Limits
from wherry.server.http.request_rules import REPEATED_BYTES, Refused, RequestRules

RULES = RequestRules(Limits(max_body_bytes=10, max_header_bytes=100))


@pytest.mark.parametrize(
    ("check", "status"),
    [
        (lambda: RULES.version("2.0"), 505),
        (lambda: RULES.target(b"CONNECT", b"a:1", {}, http10=False), 501),
        (lambda: RULES.target(b"GET", b"http://a/", {}, http10=False), 400),
        (lambda: RULES.origin(b"GET", {}, http10=False), 400),
        (lambda: RULES.repetition("host", 0), 400),
        (lambda: RULES.repetition("a", REPEATED_BYTES + 1), 431),
        (lambda: RULES.head_bytes(b"/", {"a": 100 * "a"}, 0), 431),
        (lambda: RULES.head_bytes(b"/", {"a": "a"}, 100), 431),
        (lambda: RULES.head_bytes(100 * b"/", {}, 0), 414),
        (lambda: RULES.body_bytes(11), 413),
        (lambda: RULES.coding("chunked", http10=True), 400),
        (lambda: RULES.coding("gzip, chunked", http10=False), 501),
        (lambda: RULES.expectation("200-ok"), 417),
    ],
)
def test_each_rule_has_its_status(check: Callable[[], object], status: int) -> None:
    with pytest.raises(Refused) as refused:
        check()
    assert refused.value.status == status
    assert refused.value.bug is None


def test_what_is_within_the_limits_passes() -> None:
    assert (RULES.version("1.0"), RULES.version("1.1")) == (True, False)
    RULES.origin(b"GET", {}, http10=True)
    RULES.repetition("a", REPEATED_BYTES)
    RULES.head_bytes(b"/", {"a": "a"}, 0)
    assert RULES.body_bytes(10) == 10
    RULES.coding("Chunked", http10=False)
    RULES.expectation("100-Continue")


def test_the_authority_of_an_absolute_target_replaces_the_host_header() -> None:
    headers = {"host": "a"}
    RULES.target(b"GET", b"http://b:1/path", headers, http10=False)
    assert headers == {"host": "b:1"}


def test_names_of_headers_keep_their_capitals_if_they_are_to() -> None:
    rules = RequestRules(Limits())
    assert type(rules.header_names[b"X-User"]) is str
    rules.keep_sent_names()
    name = rules.header_names[b"X-User"]
    assert name == "x-user"
    assert {"x-user": 1}[name] == {name: 1}["x-user"] == 1
    assert as_sent(name) == "X-User"
    assert type(rules.header_names[b"x-user"]) is str


def test_hosts_that_passed_once_are_known_from_then_on() -> None:
    rules = RequestRules(Limits())
    rules.answer_only(OriginCheck(Origins(), Binding.LOOPBACK))
    assert "localhost:1" not in rules.known_hosts
    rules.origin(b"GET", {"host": "localhost:1"}, http10=False)
    assert "localhost:1" in rules.known_hosts
    with pytest.raises(Refused) as refused:
        rules.origin(b"GET", {"host": "elsewhere"}, http10=False)
    assert refused.value.status == 421


def test_without_origins_an_answer_has_no_headers_for_web_pages() -> None:
    assert RULES.cors_headers({"origin": "http://a"}) == ()
