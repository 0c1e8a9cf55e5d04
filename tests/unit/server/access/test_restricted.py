"""server/access/restricted.py: who may use which part of the server."""

import pytest

from wherry.core.values.errors import AccessDenied, ConfigError
from wherry.server.access.restricted import Restrictions


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
