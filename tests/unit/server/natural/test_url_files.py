"""server/v2/row_values.py, http/entry.py: files at URLs, of one request and of all others."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wherry
from tests.fakes import until
from tests.http_exchange import Client, MemoryExchange, served
from tests.unit.server.content.test_urls import Site, a_site
from wherry.server.calls.offload import Offload
from wherry.server.content.urls import MAX_URLS, InputUrls


@wherry.model(max_batch_size=64, route="/upload")
def upload(file: list[wherry.File], other: list[wherry.File]) -> list[str]:
    return [f"{a.name} {len(a.data)} {b.name}" for a, b in zip(file, other, strict=True)]


@wherry.model(max_batch_size=8, route="/hasty", request_timeout=0.1)
def hasty(file: list[wherry.File]) -> list[int]:
    return [len(one.data) for one in file]


@pytest.fixture
def site() -> Iterator[str]:
    with a_site() as url:
        yield url


@pytest.fixture
def client(site: str) -> Iterator[Client]:
    with served(upload, hasty, input_urls=InputUrls([site]), max_body_bytes=1000) as client:
        yield client
        until(lambda: not fetching(client).bytes_in_work)


def fetching(client: Client) -> Offload:
    return client.app._entry.common.fetching


def rows(*urls: str) -> list[dict[str, str]]:
    return [{"file": one, "other": one} for one in urls]


def begin(client: Client, body: Any) -> MemoryExchange:
    return client.begin("POST", "/upload", body)


def test_a_url_is_fetched_once_however_many_rows_and_inputs_have_it(
    client: Client, site: str
) -> None:
    url = f"{site}/cat.jpg"
    assert client.post("/upload", rows(*[f"{url}#{n}" for n in range(60)])).json == (
        ["cat.jpg 4 cat.jpg"] * 60
    )
    assert len(Site.seen) == 1
    boundary = "xxxx"
    fields = [("file", url), *[("other", "data")] * 30]
    form = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in fields
    )
    answer = client.post(
        "/upload",
        f"{form}--{boundary}--\r\n".encode(),
        {"content-type": f"multipart/form-data; boundary={boundary}"},
    )
    assert answer.json == ["cat.jpg 4 None"] * 30
    assert len(Site.seen) == 2


def test_nothing_is_fetched_before_all_that_a_request_says_is_read(
    client: Client, site: str
) -> None:
    good = f"{site}/cat.jpg"
    for bad, status, why in (
        (
            rows(good, "http://elsewhere.example/"),
            400,
            "'file[1]' of model 'upload': the server fe",
        ),
        ([*rows(good), {"file": good, "other": 1}], 400, "'other[1]' of model 'upload': expected"),
        ([*rows(good), {"file": good}], 400, "'other' of model 'upload' is missing in row 1"),
        (rows(*[f"{site}/{n}" for n in range(MAX_URLS + 1)]), 413, f"{MAX_URLS + 1} URLs"),
    ):
        answer = client.post("/upload", bad)
        assert answer.status == status, answer.body
        assert why in answer.error
    assert Site.seen == []


@pytest.mark.parametrize("kind", ["silent", "drip"])
def test_all_urls_of_a_request_share_its_time(kind: str, client: Client, site: str) -> None:
    began = time.monotonic()
    urls = rows(f"{site}/cat.jpg", f"{site}/{kind}", f"{site}/{kind}/2", f"{site}/{kind}/3")
    late = client.post("/upload", urls, {"x-request-timeout": "0.1"})
    assert late.status == 504
    assert "model 'upload': the URLs of the request could not be fetched within its timeout" in (
        late.error
    )
    assert client.post("/hasty", {"file": f"{site}/{kind}"}).status == 504
    assert client.post(
        "/v2/models/hasty/generate", {"file": f"{site}/{kind}", "timeout": 50_000}
    ).error.endswith("(0.05 s)")
    assert time.monotonic() - began < 5


def test_the_time_for_urls_ends_without_a_timeout_and_the_thread_with_it(
    client: Client, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wherry.server.v2.http.entry.TIMEOUT", 0.1)
    answer = client.post("/upload", rows(f"{site}/drip"))
    assert answer.status == 400
    assert "could not be fetched within 0.1 s" in answer.error
    until(lambda: not fetching(client).bytes_in_work)


def test_slow_urls_of_others_hold_up_nobody(client: Client, site: str) -> None:
    slow = [begin(client, rows(f"{site}/silent/{n}")) for n in range(40)]
    until(lambda: len(Site.seen) == 40)
    assert client.post("/upload", rows(f"{site}/cat.jpg")).status == 200
    here = {"b64": "YWJj"}
    assert client.post("/upload", {"file": here, "other": here}).json == "None 3 None"
    large = client.post("/upload", [{"file": here, "other": here}] * 4000)
    assert large.status == 200
    for one in slow:
        client.call(one.leave)
    until(lambda: not fetching(client).bytes_in_work)
    assert not any(one.status for one in slow)


def test_a_name_that_is_looked_up_for_long_ends_with_the_requests_time(site: str) -> None:
    looked_up: list[str] = []

    def resolve(host: str, port: int, type: int) -> Any:
        looked_up.append(host)
        Site.gate.wait(5)
        raise socket.gaierror

    urls = InputUrls(["http"], resolve=resolve)
    with served(hasty, input_urls=urls) as client:
        assert client.post("/hasty", {"file": "http://slow.example/"}).status == 504
        assert looked_up == ["slow.example"]
        Site.gate.set()
        until(lambda: not fetching(client).bytes_in_work)


def test_what_was_fetched_counts_as_it_comes_and_as_long_as_it_is_there(site: str) -> None:
    held: list[int] = []
    admission: Callable[[], int] = lambda: 0  # noqa: E731

    @wherry.model(route="/size")
    def size(file: wherry.File) -> int:
        held.append(admission())
        return len(file.data)

    small = Offload(2**16 + 10)
    with served(size, input_urls=InputUrls([site]), fetching=small) as client:
        admission = lambda: client.app.admission.held_bytes  # noqa: E731
        assert client.post("/size", {"file": f"{site}/large"}).status == 503
        assert client.post("/size", {"file": f"{site}/cat.jpg"}).json == 4
        until(lambda: not small.bytes_in_work)
    with served(size, input_urls=InputUrls([site])) as client:
        assert client.post("/size", {"file": f"{site}/mib"}).json == 2**20
        assert held[-1] >= 2**20
