"""server/calls/parameters.py: whose a request's parameters are, and what they may be."""

from typing import Any

import pytest

from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.request import SequenceStep
from wherry.server.calls.parameters import (
    OF_THE_SERVER,
    HeaderForwarding,
    checked_parameters,
    for_the_model,
    sequence_of,
)
from wherry.server.calls.terms import name_with_capitals


def test_strings_numbers_and_booleans_are_parameters() -> None:
    given = {"a": "x", "b": 1, "c": True, "d": 1.5}
    assert checked_parameters(given) == given


@pytest.mark.parametrize("value", [None, [], {}, b"x"])
def test_nothing_else_is(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="'a' has invalid type"):
        checked_parameters({"a": value})


def test_whole_numbers_have_at_most_64_bits_as_on_every_way_to_the_model() -> None:
    given = {"a": -(2**63), "b": 2**64 - 1}
    assert checked_parameters(given) == given
    for value in (-(2**63) - 1, 2**64):
        with pytest.raises(InvalidRequest, match="'a' is a number of more than 64 bits"):
            checked_parameters({"a": value})


@pytest.mark.parametrize("name", ["triton_", "triton_final_response"])
def test_names_of_triton_are_reserved(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"are reserved for Triton.*'{name}'"):
        checked_parameters({name: 1})


def test_parameters_are_as_many_as_over_grpc() -> None:
    given = {f"a{number}": 1 for number in range(1024)}
    assert checked_parameters(given) == given
    with pytest.raises(InvalidRequest, match="more than 1024 parameters"):
        checked_parameters({**given, "b": 1})


@pytest.mark.parametrize("value", ["1", True, -1, 1.0])
def test_a_priority_is_a_whole_number(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="'priority' must be a whole number"):
        checked_parameters({"priority": value})


def test_the_model_is_told_only_what_the_server_does_not_act_on() -> None:
    assert for_the_model({**dict.fromkeys(OF_THE_SERVER, 1), "mine": 2}) == {"mine": 2}
    assert for_the_model(dict.fromkeys(OF_THE_SERVER, 1)) is None
    assert for_the_model({}) is None


@pytest.mark.parametrize(
    ("given", "step"),
    [
        ({}, None),
        ({"sequence_id": 0}, None),
        ({"sequence_id": ""}, None),
        ({"sequence_start": True}, None),
        ({"sequence_id": 7}, SequenceStep(7)),
        ({"sequence_id": 2**64 - 1, "sequence_end": True}, SequenceStep(2**64 - 1, end=True)),
        ({"sequence_id": "a", "sequence_start": True}, SequenceStep("a", start=True)),
    ],
)
def test_a_request_may_be_a_step_of_a_sequence(
    given: dict[str, Any], step: SequenceStep | None
) -> None:
    assert sequence_of(given) == step


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"sequence_id": -1}, "sequence_id"),
        ({"sequence_id": 2**64}, "sequence_id"),
        ({"sequence_id": 1.0}, "sequence_id"),
        ({"sequence_id": True}, "sequence_id"),
        ({"sequence_id": 1, "sequence_start": 1}, "sequence_start"),
        ({"sequence_end": "yes"}, "sequence_end"),
    ],
)
def test_a_sequence_that_is_none_is_refused_with_the_parameters_name(
    given: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' must be"):
        sequence_of(given)


HEADERS = {"header_1": "a", "my_header_1": "b", "content-type": "json"}


@pytest.mark.parametrize(
    ("pattern", "added"),
    [
        ("my_header.*", {"my_header_1": "b"}),
        ("MY_HEADER", {"my_header_1": "b"}),
        ("header_", {"header_1": "a", "my_header_1": "b"}),
        ("^header_", {"header_1": "a"}),
        ("nothing", {}),
    ],
)
def test_headers_that_match_become_parameters(pattern: str, added: dict[str, str]) -> None:
    assert HeaderForwarding(pattern).of(HEADERS) == added


@pytest.mark.parametrize(
    ("pattern", "added"),
    [
        ("^x-user", {"X-User": "ann"}),
        ("(?-i:^X-User)", {"X-User": "ann"}),
        ("(?-i:^x-user)", {}),
        ("(?-i:^other)", {"other": "o"}),
    ],
)
def test_a_parameter_has_the_capitals_of_its_header(pattern: str, added: dict[str, str]) -> None:
    headers = {name_with_capitals("X-User"): "ann", "other": "o"}
    assert HeaderForwarding(pattern).of(headers) == added


def test_a_pattern_that_is_none_is_the_operators_error() -> None:
    with pytest.raises(ConfigError, match=r"pattern '\('"):
        HeaderForwarding("(")
