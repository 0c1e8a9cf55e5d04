"""Which options has a server, and how is each called, typed, limited and explained?"""

from collections import Counter
from dataclasses import fields

import pytest

from wherry.server.options import (
    OF_A_SERVER,
    OPTIONS,
    Access,
    Capacity,
    Listen,
    Options,
    Tls,
    from_keywords,
    options_of,
)


def test_every_field_has_one_name_in_all_groups_so_that_it_can_be_a_keyword() -> None:
    names = Counter(option.name for option in OPTIONS.values())
    assert names.most_common(1)[0][1] == 1
    groups = {field.name for field in fields(Options)}
    assert not names.keys() & groups
    assert set(OF_A_SERVER) < groups


@pytest.mark.parametrize("key", OPTIONS)
def test_an_option_is_explained_and_its_default_is_in_its_range(key: str) -> None:
    option = OPTIONS[key]
    assert option.help
    assert (option.flag, option.variable) == (
        f"--{key.replace('_', '-')}",
        f"WHERRY_{key.upper()}",
    )
    assert bool(option.separator) == (option.type == tuple[str, ...])
    if isinstance(option.default, int | float):
        assert option.least <= option.default <= option.most
    if option.choices:
        assert option.default in option.choices
    assert Options().value(key) == option.default


def test_values_by_their_keys_find_their_groups() -> None:
    made = options_of({"port": 1, "api_key": ("k",), "rate_limit": "off"})
    assert made == Options(listen=Listen(port=1), access=Access(api_keys=("k",)))


def test_keywords_are_fields_and_groups_and_a_field_wins_over_its_group() -> None:
    listen = Listen(host="h", port=1)
    made = from_keywords({"port": 2, "listen": listen, "api_keys": ["a", "b"], "max_in_flight": 3})
    assert made == Options(
        listen=Listen(host="h", port=2),
        access=Access(api_keys=("a", "b")),
        capacity=Capacity(max_in_flight=3),
    )


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("prot", "'prot'; did you mean 'port'"),
        ("api_key", "'api_key'; did you mean 'api_keys'"),
        ("log_level", "no option 'log_level'"),
        ("models", "no option 'models'"),
    ],
)
def test_a_keyword_that_no_option_has_is_told_with_what_was_meant(keyword: str, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        from_keywords({keyword: 1})


def test_grpc_has_the_certificates_of_http_unless_it_has_its_own() -> None:
    ours = Tls(ssl_certfile="c", ssl_client_ca="a")
    assert ours.of_grpc == ours.of_http == ("c", None, "a")
    both = Tls(ssl_certfile="c", grpc_ssl_certfile="g", grpc_ssl_keyfile="k")
    assert (both.of_http, both.of_grpc) == (("c", None, None), ("g", "k", None))
