"""server/content/urls.py: fetching for strangers, and what is never fetched."""

import base64
import binascii
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.values.errors import ConfigError, InvalidRequest, RequestTooLarge
from wherry.server.content import urls
from wherry.server.content.urls import (
    MAX_REDIRECTS,
    TIMEOUT,
    Fetched,
    Fetching,
    InputUrls,
    b64decode,
    decoded,
    is_own,
    is_public,
)
from wherry.server.content.urls import _can_bind as has_address


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 1000, 10**6])
def test_bytes_go_there_and_back(size: int) -> None:
    data = os.urandom(size)
    assert decoded(base64.b64encode(data).decode()) == data


@given(st.text("ABab01+/=-_ \n\u00e9", max_size=24))
def test_what_is_base64_is_what_binascii_says(text: str) -> None:
    try:
        expected: bytes | None = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        expected = None
    try:
        found: bytes | None = b64decode(text)
    except ValueError:
        found = None
    assert found == expected


LONG = base64.b64encode(bytes(10**6)).decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("abc", "padding"),
        ("ab=c", "padding"),
        ("abc=abcd", "padding"),
        ("a===", "adding|data|pad"),
        ("ab\nc", "newlines"),
        ("aGVs bG8=", "padding"),
        ("aGVsbG8=\n\n\n\n", "newlines"),
        ("ab-_", "characters of URLs"),
        ("ab$!", "only base64"),
        ("äbcd", "ASCII"),
        (LONG[:-4000] + "AAA=" + LONG[:4], "padding|after|digit"),
        (LONG + LONG, "digit"),
        (LONG[:-4] + "ab\n=", "newlines"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decoded(text)


MOST = 1000


def fetch(urls: InputUrls, url: str, seconds: float = TIMEOUT) -> Fetched:
    found = urls.read(url, MOST)
    return urls.fetch(url, MOST, Fetching(int, seconds)) if found is None else found


class Site(BaseHTTPRequestHandler):
    """Answers by path; notes the headers that it was sent."""

    seen: list[dict[str, str]] = []  # noqa: RUF012 - of the class: one for each test
    gate = threading.Event()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        kind, _, rest = self.path[1:].partition("/")
        if kind == "to":
            self._answer(302, b"", Location=rest)
        elif kind == "loop":
            self._answer(301, b"", Location="/loop")
        elif kind == "large":
            self._answer(200, b"x" * (MOST + 1))
        elif kind == "mib":
            self._answer(200, b"x" * 2**20)
        elif kind == "chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(3):
                self.wfile.write(b"190\r\n" + b"y" * 400 + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        elif kind == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"x")
            self.close_connection = True
        elif kind == "silent":
            self.gate.wait(30)
            self.close_connection = True
        elif kind == "drip":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            with suppress(OSError):
                while not self.gate.wait(0.01):
                    self.wfile.write(b"x")
        elif kind == "missing":
            self._answer(404, b"")
        else:
            self._answer(200, b"meow", **{"Content-Type": "image/jpeg; q=1"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def a_site() -> Iterator[str]:
    Site.seen, Site.gate = [], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            Site.gate.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def site() -> Iterator[str]:
    with a_site() as url:
        yield url


def test_a_file_is_fetched_with_its_type_and_name_and_nothing_of_ours_goes_along(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    found = fetch(InputUrls([site]), f"{site}/a/cat.jpg?x=1")
    assert (found.data, found.media_type, found.name) == (b"meow", "image/jpeg", "cat.jpg")
    assert Site.seen[0].keys() == {"host", "user-agent", "accept", "accept-encoding"}


def test_redirects_are_followed_where_they_may_lead(site: str) -> None:
    urls = InputUrls([site])
    assert fetch(urls, f"{site}/to//cat.jpg").data == b"meow"
    with pytest.raises(InvalidRequest, match=f"more than {MAX_REDIRECTS} redirects"):
        fetch(urls, f"{site}/loop")
    with a_site() as other, pytest.raises(InvalidRequest, match="fetches no URL at"):
        fetch(urls, f"{site}/to/{other}/cat.jpg")
    for target in ("ftp://a/b", "file:///etc/passwd", "http://a b/", "//u:p@127.0.0.1/"):
        with pytest.raises(InvalidRequest, match=r"cannot fetch the URL|no URL at"):
            fetch(urls, f"{site}/to/{target.replace(' ', '%20')}")


@pytest.mark.parametrize(
    ("path", "error", "why"),
    [
        ("/large", RequestTooLarge, "more than the 1000 bytes"),
        ("/chunked", RequestTooLarge, "more than the 1000 bytes"),
        ("/cut", InvalidRequest, "cut off|IncompleteRead"),
        ("/missing", InvalidRequest, "status 404"),
    ],
)
def test_an_answer_that_is_no_file_is_refused(
    path: str, error: type[InvalidRequest], why: str, site: str
) -> None:
    with pytest.raises(error, match=why):
        fetch(InputUrls([site]), site + path)


def test_a_site_that_says_nothing_is_given_up(site: str) -> None:
    with pytest.raises(InvalidRequest, match=r"took too long|Timeout"):
        fetch(InputUrls([site]), f"{site}/silent", 0.05)


def test_a_handshake_that_never_ends_is_ended_with_the_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        origin = f"https://127.0.0.1:{server.getsockname()[1]}"
        fetching = Fetching(int)
        timer = threading.Timer(0.1, fetching.end)
        timer.start()
        with pytest.raises(InvalidRequest, match="took too long"):
            InputUrls([origin]).fetch(f"{origin}/", MOST, fetching)
        timer.join()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost/", "http://2130706433/", "http://0x7f.1/",
        "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://10.0.0.1/", "http://169.254.169.254/",
        "http://0/", "http://[fe80::1]/", "http://[64:ff9b::7f00:1]/",
    ],
)  # fmt: skip
def test_what_only_this_machine_can_reach_is_never_fetched(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"not public|not known"):
        fetch(InputUrls(["http"]), url)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1"])
def test_what_belongs_to_this_machine_is_never_fetched_however_public(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if not has_address(family, "::1" if family == socket.AF_INET6 else "127.0.0.1"):
        pytest.skip("no IPv6")
    monkeypatch.setattr("wherry.server.content.urls.is_public", lambda _: True)

    def resolve(host: str, port: int, type: int) -> Any:
        return [(0, type, 6, "", (one, port)) for one in ("93.184.216.34", address)]

    with pytest.raises(InvalidRequest, match="not public"):
        fetch(InputUrls(["http"], resolve=resolve), "http://me.example/")


def test_addresses_of_others_are_not_our_own() -> None:
    assert not is_own("93.184.216.34")
    assert not is_own("2606:2800:220:1::1")


def test_a_system_that_binds_any_address_is_asked_where_it_would_send_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(urls, "_can_bind", lambda *_: True)  # ip_nonlocal_bind
    assert is_own("127.0.0.1")
    assert not is_own("93.184.216.34")
    assert not is_own("2606:2800:220:1::1")


def test_a_name_is_looked_up_once_and_all_its_addresses_must_be_public() -> None:
    asked: list[str] = []

    def resolve(host: str, port: int, type: int) -> Any:
        asked.append(host)
        public = (socket.AF_INET, type, 6, "", ("93.184.216.34", port))
        return [public, (socket.AF_INET, type, 6, "", ("127.0.0.1", port))]

    with pytest.raises(InvalidRequest, match="not public"):
        fetch(InputUrls(["http"], resolve=resolve), "http://rebinding.example/")
    assert asked == ["rebinding.example"]


def test_the_connection_goes_to_the_address_that_was_checked(site: str) -> None:
    port = int(site.rpartition(":")[2])

    def resolve(host: str, _: int, type: int) -> Any:
        return [(socket.AF_INET, type, 6, "", ("127.0.0.1", port))]

    origin = f"http://cats.example:{port}"
    found = fetch(InputUrls([origin], resolve=resolve), f"{origin}/cat.jpg")
    assert found.data == b"meow"
    assert Site.seen[0]["host"] == f"cats.example:{port}"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com:8080/", "ports 80 and 443, not 8080"),
        ("http://user@example.com/", "cannot fetch the URL"),
        ("http:///path", "cannot fetch the URL"),
        ("http://exa mple.com/", "cannot fetch the URL"),
        ("http://example.com/\r\nX: y", "cannot fetch the URL"),
        ("http://example.com:99999/", "cannot fetch the URL"),
        ("http://[::1/", "cannot fetch the URL"),
        ("http://" + "a" * 9000, "cannot fetch the URL"),
        ("http://nobody.invalid/", "not known"),
    ],
)
def test_an_odd_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        fetch(InputUrls(["http"]), url)


@pytest.mark.parametrize(
    ("url", "data", "media_type"),
    [
        ("data:image/png;base64,bWVvdw==", b"meow", "image/png"),
        ("DATA:;base64,bWVvdw==", b"meow", None),
        ("data:,a%20b%FF", b"a b\xff", None),
        ("data:text/plain;charset=utf-8,x,y", b"x,y", "text/plain"),
        ("data:image/png;x=1; base64,", b"", "image/png"),
    ],
)
def test_a_data_url_is_its_bytes(url: str, data: bytes, media_type: str | None) -> None:
    found = fetch(InputUrls(["data"]), url)
    assert (found.data, found.media_type) == (data, media_type)


@pytest.mark.parametrize(
    ("url", "error", "why"),
    [
        ("data:image/png;base64", InvalidRequest, "comma"),
        ("data:;base64,a", InvalidRequest, "padding"),
        ("data:;base64," + "A" * 2000, RequestTooLarge, "more than the 1000 bytes"),
        ("data:," + "A" * (2**20 + 1), RequestTooLarge, "in base64"),
    ],
)
def test_a_data_url_that_is_wrong_or_too_large_is_refused(
    url: str, error: type[InvalidRequest], why: str
) -> None:
    with pytest.raises(error, match=why):
        fetch(InputUrls(["data"]), url)


def test_nothing_is_fetched_unless_the_operator_allows_it() -> None:
    with pytest.raises(InvalidRequest, match="--input-url http"):
        fetch(InputUrls(), "https://example.com/")
    with pytest.raises(InvalidRequest, match="--input-url data"):
        fetch(InputUrls(["http"]), "data:,")
    assert not InputUrls(["data"]).fetches


@pytest.mark.parametrize("text", ["", "ftp://a", "http://a/b", "http://a/", "a:80", "http://u@a"])
def test_an_option_that_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="input_url"):
        InputUrls([text])


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("1.1.1.1", True),
        ("127.0.0.1", False), ("127.255.255.254", False), ("10.1.2.3", False),
        ("172.16.0.1", False), ("172.31.255.255", False), ("172.32.0.1", True),
        ("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False),
        ("168.63.129.16", False), ("161.26.0.10", False), ("166.9.1.1", False),
        ("0.0.0.0", False), ("224.0.0.1", False), ("255.255.255.255", False),
        ("198.18.0.1", False), ("192.0.2.1", False), ("192.88.99.1", False), ("240.0.0.1", False),
        ("::", False), ("::1", False), ("::ffff:1.1.1.1", False), ("fe80::1", False),
        ("fe80::1%eth0", False), ("fc00::1", False), ("fec0::1", False), ("ff02::1", False),
        ("64:ff9b::1.1.1.1", False), ("64:ff9b:1::1", False), ("2002:101:101::", False),
        ("2001::1", False), ("2001:db8::1", False), ("100::1", False), ("nonsense", False),
    ],
)  # fmt: skip
def test_an_address_is_public_or_not(address: str, public: bool) -> None:
    assert is_public(address) is public
