"""frontends/api_keys.py"""

import pytest

from wherry.frontends.api_keys import ApiKeys


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"authorization": "Bearer one"}, True),
        ({"authorization": "bearer   two "}, True),
        ({"x-api-key": "one"}, True),
        ({"x-api-key": "three"}, False),
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
    assert ApiKeys(["one", "two"]).allow(headers) is allowed


def test_without_keys_everybody_may() -> None:
    assert ApiKeys([]).allow({})
    assert not ApiKeys([])
    assert ApiKeys(["one"])
