"""server/access/api_keys.py"""

from typing import Any

import pytest

from tests.costs import assert_linear
from wherry.core.values.errors import AccessDenied, ConfigError
from wherry.server.access.api_keys import (
    MIN_KEY_CHARS,
    ApiKeys,
    Restrictions,
    parse_key,
    parse_key_file,
)
from wherry.server.calls.terms import terms_of


def test_a_restricted_group_wants_its_header_with_its_value() -> None:
    restrictions = Restrictions(["model-repository,trace:Admin-Key=a=b"])
    for group in ("model-repository", "trace"):
        restrictions.check(group, {"admin-key": "a=b"})
        for headers in ({}, {"admin-key": "A=B"}, {"admin-key": "a=b2"}, {"admin-key": "\xff"}):
            with pytest.raises(AccessDenied, match="restricted, expecting header 'Admin-Key'"):
                restrictions.check(group, headers)
    restrictions.check("inference", {})


def test_a_protocol_may_put_its_prefix_before_the_header() -> None:
    restrictions = Restrictions(["inference:key=x"])
    restrictions.check(
        "inference", {"triton-grpc-protocol-key": "x"}, prefix="triton-grpc-protocol-"
    )
    with pytest.raises(AccessDenied, match=r"This protocol is .* 'triton-grpc-protocol-key'"):
        restrictions.check(
            "inference", {"key": "x"}, what="protocol", prefix="triton-grpc-protocol-"
        )


def test_what_others_want_holds_where_nothing_else_is_said() -> None:
    others = Restrictions(["trace,logging:k=v"], ["metrics"])
    restrictions = Restrictions(["trace:k=w"], others=others)
    restrictions.check("trace", {"k": "w"})
    restrictions.check("logging", {"k": "v"})
    restrictions.check("metrics", {})
    with pytest.raises(AccessDenied):
        restrictions.check("trace", {"k": "v"})
    others.check("trace", {"k": "v"})


def test_a_group_that_is_off_is_off_with_any_header() -> None:
    restrictions = Restrictions(["trace:k=v"], ["trace,logging", "metrics"])
    for group in ("trace", "logging", "metrics"):
        with pytest.raises(AccessDenied, match="switched off"):
            restrictions.check(group, {"k": "v"})


def test_without_a_word_everything_is_open() -> None:
    assert not Restrictions()
    assert Restrictions(off=["trace"])
    assert Restrictions(["trace:k=v"])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("inference", "write GROUP"),
        ("inference:key", "write GROUP"),
        ("inference:=v", "write GROUP"),
        ("inference:k=", "write GROUP"),
        ("inferrence:k=v", "did you mean 'inference'"),
        ("inference,inference:k=v", "restricted twice"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Restrictions([rule])


def test_what_is_to_be_off_must_be_a_group() -> None:
    with pytest.raises(ConfigError, match="unknown group 'everything'"):
        Restrictions(off=["everything"])


LONG = "0123456789abcdef"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"authorization": "Bearer one"}, True),
        ({"authorization": "bearer   two "}, True),
        ({"x-api-key": "one"}, True),
        ({"x-api-key": "three"}, False),
        ({"x-api-key": "ones"}, False),
        ({"x-api-key": "on"}, False),
        ({"authorization": "Basic one", "x-api-key": "one"}, True),
        ({"authorization": "Bearer three", "x-api-key": "one"}, False),
        ({"authorization": "Bearer"}, False),
        ({"authorization": "one"}, False),
        ({"x-api-key": "\u20ac"}, False),
        ({}, False),
    ],
)
def test_a_key_comes_as_a_bearer_or_in_its_own_header(
    headers: dict[str, str], allowed: bool
) -> None:
    assert (ApiKeys(["one", "two"]).name_of(headers) is not None) is allowed


def test_without_keys_there_is_nothing_to_ask_for() -> None:
    assert not ApiKeys([])
    assert ApiKeys(["one"])


def test_a_key_has_the_name_that_it_was_given_or_a_number() -> None:
    keys = ApiKeys(["one", "ops: two", "ci:three=="])
    names = [keys.name_of({"x-api-key": key}) for key in ("one", "two", "three==", "ops", "four")]
    assert names == ["key 1", "ops", "ci", None, None]
    assert "two" not in repr(keys)
    assert "two" not in repr(parse_key("ops: two", "here"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "ops:",
        "ops: ",
        ": two",
        ":two",
        "o ps: two",
        "o/ps: two",
        "one two",
        "one\ttwo",
        "ops: one two",
        "one # comment",
        "name=two",
        "a:b:c",
        "k\u00e9y",
        "\u20ac",
        "one\x00",
        "one\x7f",
        "\u00a0one",
        "one\u2028two",
        65 * "n" + ": two",
    ],
)
def test_what_cannot_be_sent_as_a_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^API key 1: ") as refused:
        ApiKeys([text])
    assert "two" not in str(refused.value)


@pytest.mark.parametrize(
    "keys", [["a: one", "a: two"], ["one", "one"], ["a: one", "b: one"], ["one", "b: one"]]
)
def test_neither_a_name_nor_a_key_may_be_there_twice(keys: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"there 2 times|the same as") as refused:
        ApiKeys(keys)
    assert "one" not in str(refused.value)


def test_a_file_has_one_key_a_line_and_comments() -> None:
    text = f"\ufeff# ops team\r\n\r\nops: {LONG}\r\n  \t# old\n{LONG}x  \nci:{LONG}y=="
    assert parse_key_file(text, "f") == [f"ops: {LONG}", f"{LONG}x", f"ci:{LONG}y=="]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{LONG}\n# x\nshort-secret\n", 3),
        (f"ops: {LONG[:-1]}\n", 1),
        (f"{LONG} # comment\n", 1),
        (f"\n\n{LONG} {LONG}\n", 3),
        (f"ops={LONG}\n", 1),
        (f"{LONG}\u00e9\n", 1),
        (f"{LONG}\rx{LONG}\n", 1),
        (f"{LONG}\x0b{LONG}\n", 1),
    ],
)
def test_a_wrong_line_of_a_file_is_named_and_not_shown(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=f"^keys.txt line {line}: ") as refused:
        parse_key_file(text, "keys.txt")
    assert LONG[:8] not in str(refused.value)
    assert "short-secret" not in str(refused.value)


def test_a_key_of_a_file_has_enough_characters_to_be_no_guess() -> None:
    assert parse_key_file(MIN_KEY_CHARS * "k", "f") == [MIN_KEY_CHARS * "k"]
    with pytest.raises(ConfigError, match="at least 16"):
        parse_key_file((MIN_KEY_CHARS - 1) * "k", "f")


@pytest.mark.parametrize("piece", [f"{LONG}\n", "#\n", "\n", "\r", "a", "a=", " ", ":", "a:"])
def test_reading_a_file_costs_in_proportion_to_its_length(piece: str) -> None:
    def read(text: str) -> Any:
        try:
            return parse_key_file(text, "f")
        except ConfigError:
            return None

    assert_linear(read, lambda size: piece * size, largest=2**17)


def test_a_tenant_is_named_or_a_key_without_its_text() -> None:
    named = terms_of({"x-tenant-id": "t", "x-api-key": LONG}, b"key")
    assert (named.names_tenant, named.tenant) == (True, "t")
    gateway = {"x-gateway-inference-fairness-id": "g", "x-tenant-id": "t", "x-api-key": LONG}
    assert terms_of(gateway, b"key").tenant == "g"
    other = terms_of({"authorization": f"Bearer {LONG}"}, b"key")
    assert other.tenant
    assert not other.names_tenant  # the name of a key that was checked here comes before it
    assert LONG not in other.tenant
    assert other.tenant != terms_of({"x-api-key": LONG}, b"key").tenant
    assert terms_of({}, b"key").tenant == ""


def test_processes_with_the_same_secret_give_a_key_the_same_tenant() -> None:
    headers = {"authorization": f"Bearer {LONG}"}
    assert terms_of(headers, b"one").tenant == "#a8b1b2db75e9a93a"
    assert terms_of(headers, b"one").tenant != terms_of(headers, b"two").tenant
