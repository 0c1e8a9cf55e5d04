"""Which host names does a listener answer to, and which web pages may call it?"""

from collections.abc import Iterable

import pytest

from tests.costs import assert_linear
from wherry.core.values.errors import ConfigError
from wherry.server.access.origins import (
    MAX_HOST_CHARS,
    MAX_HOSTS,
    Authority,
    Binding,
    OriginCheck,
    Origins,
    binding_of,
    normal_origin,
)

HERE = "localhost:8000"
CORS_LIST = Origins(cors_origins=["https://app.example.com", "http://localhost:3000"])


def check(
    binding: Binding = Binding.LOOPBACK,
    allowed_hosts: tuple[str, ...] = (),
    cors_origins: tuple[str, ...] = (),
    *,
    tls: bool = False,
    own_name: str = "127.0.0.1",
) -> OriginCheck:
    return OriginCheck(Origins(allowed_hosts, cors_origins), binding, tls=tls, own_name=own_name)


def status(rules: OriginCheck, method: str = "POST", **headers: str) -> int:
    """200: the application is asked."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = rules.refusal(method, given)
    return 200 if refusal is None else refusal.status


def all_of(rows: Iterable[str], outcome: int) -> dict[str, int]:
    """A table of rows with one outcome: a failure shows the rows that have another."""
    return dict.fromkeys(rows, outcome)


LOOPBACK_HOSTS = [
    "localhost",
    "localhost:8000",
    "LOCALHOST:8000",
    "localhost.",
    "localhost.:8000",
    "app.localhost",
    "a.b.localhost.:1",
    "127.0.0.1",
    "127.0.0.1:65535",
    "127.255.1.9:8000",
    "[::1]",
    "[::1]:8000",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]:8000",
]
OTHER_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhostx",
    "xlocalhost",
    "x-localhost",
    "localhost.localdomain",
    "127.1",
    "0x7f.1",
    "0x7f.0.0.1",
    "2130706433",
    "0177.0.0.1",
    "127.0.0.01",
    "0.0.0.0",
    "10.0.0.5:8000",
    "128.0.0.1",
    "[::]",
    "[::2]:8000",
    "[::1%25lo]:8000",
    "[::1%lo]",
    "xn--localhst-n4a.example",
]
NO_HOSTS = [
    "",
    " ",
    ":8000",
    ".",
    "..",
    ".localhost",
    "a..localhost",
    "localhost..",
    "localhost:x",
    "localhost:-1",
    "localhost:65536",
    "localhost:8000:8000",
    "localhost:\u0668\u0660",
    "user@localhost",
    "localhost@evil.example",
    "evil.example#@localhost",
    "localhost/",
    "localhost\\evil.example",
    "localhost, evil.example",
    "localhost evil.example",
    "localhost\tx",
    "local%68ost",
    "l\u00f6calhost",
    "http://localhost",
    "::1",
    "[::1",
    "::1]",
    "[localhost]",
    "[127.0.0.1]",
    "[::1]x",
    "[]",
    "localhost" + MAX_HOST_CHARS * "x",
]


def test_on_loopback_its_own_names_are_answered() -> None:
    assert {host: status(check(), host=host) for host in LOOPBACK_HOSTS} == all_of(
        LOOPBACK_HOSTS, 200
    )


def test_on_loopback_other_names_are_misdirected_and_the_remedy_is_said() -> None:
    assert {host: status(check(), host=host) for host in OTHER_HOSTS} == all_of(OTHER_HOSTS, 421)
    refusal = check().refusal("GET", {"host": OTHER_HOSTS[0]})
    assert refusal is not None
    assert "--allowed-host" in refusal.message


@pytest.mark.parametrize("binding", [Binding.LOOPBACK, Binding.NETWORK])
def test_what_is_no_host_name_is_a_bad_request(binding: Binding) -> None:
    assert {host: status(check(binding), host=host) for host in NO_HOSTS} == all_of(NO_HOSTS, 400)


def test_a_long_host_is_quoted_in_part_only() -> None:
    refusal = check().refusal("GET", {"host": 290 * "x"})
    assert refusal is not None
    assert len(refusal.message) < 500


@pytest.mark.parametrize("host", ["models.example.com", "MODELS.example.com.:80", "a.b.internal"])
def test_allowed_hosts_are_answered_on_loopback(host: str) -> None:
    rules = check(allowed_hosts=("models.example.com", "*.internal"))
    assert status(rules, host=host) == 200


@pytest.mark.parametrize("host", ["example.com", "x.models.example.com", "internal", "xinternal"])
def test_an_allowed_host_means_no_other_and_a_wildcard_only_what_is_below(host: str) -> None:
    rules = check(allowed_hosts=("models.example.com", "*.internal"))
    assert status(rules, host=host) == 421


def test_a_star_answers_to_any_name() -> None:
    assert status(check(allowed_hosts=("*",)), host="evil.example") == 200
    assert status(check(allowed_hosts=("*",)), host="no name") == 400


def test_the_name_that_it_was_told_to_listen_on_is_its_own() -> None:
    assert status(check(own_name="mybox"), host="mybox:8000") == 200


def test_on_a_network_any_name_is_answered() -> None:
    hosts = [*OTHER_HOSTS, *LOOPBACK_HOSTS]
    rules = check(Binding.NETWORK)
    assert {host: status(rules, host=host) for host in hosts} == all_of(hosts, 200)


def test_on_a_network_with_allowed_hosts_addresses_are_still_answered() -> None:
    rules = check(Binding.NETWORK, ("models.example.com",), own_name="0.0.0.0")
    for host in ("models.example.com", "10.0.0.5:8000", "[fd00::5]:8000", "localhost:8000"):
        assert status(rules, host=host) == 200
    for host in ("evil.example", "example.com"):
        assert status(rules, host=host) == 421


@pytest.mark.parametrize("host", ["evil.example", "no name", ""])
def test_on_a_unix_socket_any_host_is_answered(host: str) -> None:
    assert status(check(Binding.UNIX), host=host) == 200


def test_a_request_without_a_host_is_no_browsers() -> None:
    assert status(check()) == 200  # HTTP/1.0; the transport refuses it in HTTP/1.1


FOREIGN_ORIGINS = [
    "https://evil.example",
    "http://evil.example:8000",
    "null",
    "",
    "http://localhost",
    "http://localhost:3000",
    "https://localhost:8000",
    "http://127.0.0.1:8000",
    "http://localhost:8000.evil.example",
    "http://127.0.0.1:8000.evil.example",
    "http://localhost:8000/",
    "http://localhost:8000, https://evil.example",
    "https://evil.example, http://localhost:8000",
    "http://localhost:8000 https://evil.example",
    "http://user@localhost:8000",
    "http://evil.example@localhost:8000",
    "http://localhost:8000#x",
    "localhost:8000",
    "//localhost:8000",
    "http:localhost:8000",
    "http://",
    "ftp://localhost:8000",
    "file://",
    "chrome-extension://abcdef",
    "http://sub.localhost:8000",
    "http://" + 1000 * "x",
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
def test_a_page_of_another_origin_may_not_call(method: str) -> None:
    statuses = {o: status(check(), method, host=HERE, origin=o) for o in FOREIGN_ORIGINS}
    assert statuses == all_of(FOREIGN_ORIGINS, 403)
    refusal = check().refusal(method, {"host": HERE, "origin": FOREIGN_ORIGINS[0]})
    assert refusal is not None
    assert "--cors-origin" in refusal.message


@pytest.mark.parametrize("site", ["same-origin", "none", "same-site", "cross-site"])
def test_a_foreign_origin_is_foreign_whatever_else_is_said(site: str) -> None:
    headers = {"origin": "https://evil.example", "sec_fetch_site": site}
    assert status(check(), host=HERE, **headers) == 403


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (HERE, "http://localhost:8000"),
        (HERE, "HTTP://LOCALHOST:8000"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("127.0.0.1:9", "http://127.0.0.1:9"),
        ("[::1]:9", "http://[::1]:9"),
    ],
)
def test_the_servers_own_page_may_call(host: str, origin: str) -> None:
    assert status(check(), host=host, origin=origin) == 200
    assert status(check(), host=host, origin=origin, sec_fetch_site="same-origin") == 200


def test_over_tls_the_own_page_came_over_tls() -> None:
    rules = check(tls=True)
    assert status(rules, host=HERE, origin="https://localhost:8000") == 200
    assert status(rules, host="localhost", origin="https://localhost:443") == 200
    assert status(rules, host=HERE, origin="http://localhost:8000") == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Same-Origin", "none, x", "x", ""])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_an_origin_the_browsers_word_for_another_site_counts(
    site: str, method: str
) -> None:
    refusal = check().refusal(method, {"host": HERE, "sec-fetch-site": site})
    assert refusal is not None
    assert refusal.status == 403
    assert "--cors-origin" in refusal.message


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_what_a_user_types_and_the_own_page_fetches_is_answered(site: str) -> None:
    assert status(check(), "GET", host=HERE, sec_fetch_site=site) == 200


def test_a_link_on_another_page_may_lead_to_this_server() -> None:
    opens = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert status(check(), "GET", host=HERE, **opens, sec_fetch_dest="document") == 200
    assert status(check(), "GET", host=HERE, **opens, sec_fetch_dest="iframe") == 403
    assert status(check(), "GET", host=HERE, **opens) == 403
    assert status(check(), "POST", host=HERE, **opens, sec_fetch_dest="document") == 403


@pytest.mark.parametrize(
    "origin", ["https://app.example.com", "HTTPS://App.Example.com:443", "http://localhost:3000"]
)
def test_a_page_that_was_allowed_may_call(origin: str) -> None:
    rules = OriginCheck(CORS_LIST, Binding.LOOPBACK)
    assert status(rules, host=HERE, origin=origin, sec_fetch_site="cross-site") == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://app.example.com",
        "https://app.example.com:444",
        "https://app.example.com.evil.example",
        "https://x.app.example.com",
        "https://app.example.com/",
        "https://app.example.com, https://evil.example",
        "null",
    ],
)
def test_what_was_allowed_is_exactly_one_origin(origin: str) -> None:
    assert status(OriginCheck(CORS_LIST, Binding.LOOPBACK), host=HERE, origin=origin) == 403


def test_with_a_star_any_page_may_call_but_the_host_counts_still() -> None:
    rules = check(cors_origins=("*",))
    assert status(rules, host=HERE, origin="https://evil.example") == 200
    assert status(rules, host=HERE, origin="null") == 200
    assert status(rules, host="evil.example", origin="https://evil.example") == 421


def test_a_page_at_a_name_that_dns_gave_us_is_not_believed_to_be_our_own() -> None:
    rebound = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
    for binding in (Binding.NETWORK, Binding.UNIX):
        refusal = check(binding).refusal("POST", rebound)
        assert refusal is not None
        assert refusal.status == 403
        assert "--allowed-host evil.example" in refusal.message
        given = check(binding, ("evil.example",))
        assert given.refusal("POST", rebound) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("10.0.0.5:8000", "http://10.0.0.5:8000"),
        ("[fd00::5]:8000", "http://[fd00::5]:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("models.example.com", "https://models.example.com"),  # a proxy ends the TLS
        ("models.example.com:444", "https://models.example.com:444"),
        ("mybox:8000", "http://mybox:8000"),
    ],
)
def test_on_a_network_the_own_page_is_known_by_address_certificate_or_given_name(
    host: str, origin: str
) -> None:
    assert status(check(Binding.NETWORK, own_name="mybox"), host=host, origin=origin) == 200


def test_forwarded_hosts_are_not_believed() -> None:
    assert status(check(), host="evil.example", x_forwarded_host="localhost") == 421
    foreign = {"origin": "https://evil.example", "x_forwarded_host": "evil.example"}
    assert status(check(), host=HERE, **foreign, forwarded="host=evil.example") == 403


def test_hosts_that_were_answered_are_remembered_up_to_a_bound() -> None:
    rules = check(Binding.NETWORK)
    for number in range(3 * MAX_HOSTS):
        rules.refusal("GET", {"host": f"host-{number}"})
    assert 0 < len(rules.known) <= MAX_HOSTS
    assert "host-1535" in rules.known


def test_hosts_that_are_refused_are_not_remembered() -> None:
    rules = check()
    for host in (*OTHER_HOSTS, *NO_HOSTS):
        rules.refusal("GET", {"host": host})
    assert not rules.known


def test_a_preflight_is_answered_with_what_it_asks_for() -> None:
    wanted = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
    answer = CORS_LIST.preflight(
        "OPTIONS",
        {
            "origin": "https://app.example.com",
            "access-control-request-method": "POST",
            "access-control-request-headers": wanted,
            "access-control-request-private-network": "true",
        },
    )
    assert answer is not None
    given = dict(answer)
    assert given["Access-Control-Allow-Origin"] == "https://app.example.com"
    assert given["Access-Control-Allow-Headers"] == wanted
    assert "POST" in given["Access-Control-Allow-Methods"]
    assert given["Access-Control-Allow-Private-Network"] == "true"
    assert int(given["Access-Control-Max-Age"]) > 0
    assert "Origin" in given["Vary"]
    assert "Access-Control-Allow-Credentials" not in given


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("OPTIONS", {}),
        ("OPTIONS", {"origin": "https://app.example.com"}),
        ("POST", {"origin": "https://app.example.com", "access-control-request-method": "POST"}),
        ("OPTIONS", {"origin": "https://evil.example", "access-control-request-method": "POST"}),
    ],
)
def test_what_is_no_preflight_of_an_allowed_page_is_not_answered_as_one(
    method: str, headers: dict[str, str]
) -> None:
    assert CORS_LIST.preflight(method, headers) is None


def test_names_of_headers_that_are_none_are_not_sent_back() -> None:
    asked = {"origin": "https://app.example.com", "access-control-request-method": "POST"}
    for wanted in ("x\r\nSet-Cookie: y", "x: y", "\u00e4", 5000 * "x"):
        answer = CORS_LIST.preflight("OPTIONS", asked | {"access-control-request-headers": wanted})
        assert answer is not None
        assert "Access-Control-Allow-Headers" not in dict(answer)


def test_only_an_allowed_page_may_read_the_answer() -> None:
    allowed = dict(CORS_LIST.answer_headers({"origin": "https://app.example.com"}))
    assert allowed["Access-Control-Allow-Origin"] == "https://app.example.com"
    assert allowed["Vary"] == "Origin"
    exposed = allowed["Access-Control-Expose-Headers"]
    assert {"X-Request-Id", "Inference-Header-Content-Length", "Retry-After"} <= set(
        exposed.split(", ")
    )
    assert not CORS_LIST.answer_headers({"origin": "https://evil.example"})
    assert not CORS_LIST.answer_headers({})
    anyone = dict(Origins(cors_origins=["*"]).answer_headers({"origin": "null"}))
    assert anyone["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize(
    "host", ["", "a:80", "http://a", "a/b", "*.*.a", "*a", ".a", "a b", "ex\u00e4mple", "a,b"]
)
def test_an_allowed_host_that_can_never_be_sent_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="allowed_host"):
        Origins(allowed_hosts=[host])


def test_addresses_may_be_allowed() -> None:
    rules = check(allowed_hosts=("192.168.1.5", "[fd00::5]", "fd00::6"))
    for host in ("192.168.1.5:8000", "[fd00::5]", "[fd00:0::6]:80"):
        assert status(rules, host=host) == 200


@pytest.mark.parametrize(
    "origin", ["", "app.example.com", "https://a/", "https://a/b", "null", "https://*.a", "a b"]
)
def test_a_cors_origin_that_can_never_be_sent_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origin"):
        Origins(cors_origins=[origin])


@pytest.mark.parametrize(
    ("addresses", "binding"),
    [
        ([("127.0.0.1", 8000)], Binding.LOOPBACK),
        ([("127.0.0.1", 8000), ("::1", 8000, 0, 0)], Binding.LOOPBACK),
        ([("127.0.0.1", 8000), ("10.0.0.5", 8000)], Binding.NETWORK),
        ([("0.0.0.0", 8000), ("::", 8000, 0, 0)], Binding.NETWORK),
        ([("fe80::1%eth0", 8000, 0, 2)], Binding.NETWORK),
        (["/run/wherry.sock"], Binding.UNIX),
        ([], Binding.NETWORK),
        ([b"\0abstract"], Binding.UNIX),
    ],
)
def test_where_a_listener_can_be_reached_from(addresses: list[object], binding: Binding) -> None:
    assert binding_of(addresses) is binding


def test_one_origin_has_one_spelling() -> None:
    assert normal_origin("HTTPS://A.example:443") == "https://a.example"
    assert normal_origin("http://[0::1]:80") == "http://[::1]"
    assert normal_origin("http://a:443") == "http://a:443"
    assert normal_origin("tauri://localhost") == "tauri://localhost"


@pytest.mark.parametrize("piece", ["a", ".", "a.", "1.", ":", "[", "[::1]", "%", "-", " ", "x://"])
def test_reading_a_host_costs_in_proportion_to_its_length(piece: str) -> None:
    def read(text: str) -> None:
        Authority.parse(text)
        normal_origin(text)
        normal_origin("http://" + text)

    assert_linear(read, lambda size: piece * size, largest=2**16)
