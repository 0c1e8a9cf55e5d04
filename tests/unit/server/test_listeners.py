"""On which addresses does a server listen, and which routes does it answer on each?"""

import socket
import urllib.request
from typing import Any
from urllib.error import HTTPError

import pytest

import wherry
from tests.fakes import TIMEOUT
from tests.unit.server.asking import get, upper
from wherry.core.values.errors import ConfigError
from wherry.testing import local_server


def test_operators_may_have_a_port_of_their_own() -> None:
    with local_server(upper, management_port=0, api_keys=["k"]) as server:
        assert server.management_url.startswith("http://127.0.0.1:")
        with wherry.Client(server.url, api_key="k") as client:
            assert client.infer("upper", text="a") == "A"
        for path in ("/metrics", "/v2/logging", "/v2/trace/setting", "/v2/repository/index"):
            assert get(server.url + path)[0] == 404
            assert get(server.management_url + path)[0] == 401
        with wherry.Client(server.management_url, api_key="k") as client:
            assert client.infer("upper", text="a") == "A"
        assert get(server.management_url + "/v2/health/ready")[0] == 200
    with pytest.raises(OSError, match="refused"):
        get(server.management_url + "/v2")


def test_metrics_may_have_a_port_as_well_and_nothing_else_is_there() -> None:
    with local_server(upper, metrics_port=0) as server:
        for url in (server.url, server.metrics_url):
            assert "wherry_requests_in_flight" in get(f"{url}/metrics")[1]
        for path in ("/v2", "/v2/health/ready", "/v2/repository/index"):
            assert get(server.metrics_url + path)[0] == 404
        assert get(f"{server.url}/v2/logging")[0] == 200


def test_without_http_there_is_grpc_and_what_operators_have() -> None:
    grpc = pytest.importorskip("tritonclient.grpc")
    with local_server(upper, http=False, port=8000, grpc_port=0, metrics_port=0) as server:
        assert server.url == ""
        assert "wherry_requests_in_flight" in get(f"{server.metrics_url}/metrics")[1]
        with grpc.InferenceServerClient(server.grpc_url) as client:
            assert client.is_model_ready("upper")
        with socket.socket() as there, pytest.raises(OSError, match="refused"):
            there.connect(("127.0.0.1", 8000))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "nothing to speak: set grpc_port"),
        ({"metrics_port": 0}, "nothing to speak: set grpc_port"),
        ({"grpc_port": 0, "fronts": 2}, "fronts need HTTP"),
    ],
)
def test_without_http_something_else_is_needed(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        wherry.Server(upper, http=False, isolation="process", **options)


def test_grpc_and_the_metrics_may_have_an_address_of_their_own() -> None:
    with local_server(
        upper,
        host="127.0.0.1",
        grpc_port=0,
        grpc_host="127.0.0.2",
        metrics_port=0,
        metrics_host="127.0.0.3",
        management_port=0,
    ) as server:
        addresses = server.url, server.management_url, server.grpc_url, server.metrics_url
        found = [one.removeprefix("http://").rpartition(":")[0] for one in addresses]
        assert found == ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3"]
        assert "wherry_requests_in_flight" in get(f"{server.metrics_url}/metrics")[1]
        for url in (server.metrics_url, f"http://{server.grpc_url}"):
            port = int(url.rpartition(":")[2])
            with socket.socket() as there, pytest.raises(OSError, match="refused"):
                there.connect(("127.0.0.1", port))


def test_what_has_a_port_of_its_own_is_not_left_open_over_grpc() -> None:
    grpc = pytest.importorskip("tritonclient.grpc")
    with local_server(upper, grpc_port=0, management_port=0) as server:
        client = grpc.InferenceServerClient(server.grpc_url)
        try:
            assert client.is_model_ready("upper")
            for ask in (client.get_model_repository_index, client.get_log_settings):
                with pytest.raises(Exception, match="PERMISSION_DENIED"):
                    ask()
        finally:
            client.close()


@pytest.mark.parametrize("taken", ["port", "grpc_port", "metrics_port", "agent_port"])
def test_all_addresses_are_taken_or_none_and_the_runtime_can_be_served_elsewhere(
    taken: str,
) -> None:
    runtime = wherry.Runtime(upper)
    with local_server(upper) as other:
        busy = int(other.url.rpartition(":")[2])
        ports = {"port": 0, taken: busy}
        with pytest.raises((OSError, wherry.ConfigError), match=r"in use|taken"):
            wherry.Server(runtime, **ports).start()  # type: ignore[arg-type]
        assert get(f"{other.url}/v2/health/ready")[0] == 200
    with wherry.Server(runtime, port=0) as server, wherry.Client(server.url) as client:
        assert client.infer("upper", text="a") == "A"


def test_a_management_port_that_is_taken_is_said() -> None:
    with (
        local_server(upper) as other,
        pytest.raises(wherry.ConfigError, match=r"management_port .*in use"),
        local_server(upper, management_port=int(other.url.rpartition(":")[2])),
    ):
        pass


def ask(url: str, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url + path, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code


def test_every_port_looks_at_hosts_and_origins() -> None:
    page = "https://app.example.com"
    with wherry.Server(
        upper,
        port=0,
        management_port=0,
        metrics_port=0,
        allowed_hosts=["models.example.com"],
        cors_origins=[page],
    ) as server:
        for url in (server.url, server.management_url, server.metrics_url):
            path = "/metrics" if url == server.metrics_url else "/"
            assert ask(url, path) == 200
            assert ask(url, path, Host="models.example.com") == 200
            assert ask(url, path, Host="evil.example") == 421
            assert ask(url, path, Origin="https://evil.example") == 403
            assert ask(url, path, Origin=page) == 200
            assert ask(url, path, Sec_Fetch_Site="cross-site") == 403


def test_what_is_not_found_and_not_allowed_an_allowed_page_may_read() -> None:
    page = "https://app.example.com"
    with wherry.Server(
        upper, port=0, metrics_port=0, api_keys=["k" * 16], cors_origins=[page]
    ) as server:
        for url, status in ((server.url + "/v2", 401), (server.metrics_url + "/v2", 404)):
            request = urllib.request.Request(url, headers={"Origin": page})
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(request, timeout=TIMEOUT)
            with refused.value as answer:
                assert answer.code == status
                assert answer.headers["Access-Control-Allow-Origin"] == page
