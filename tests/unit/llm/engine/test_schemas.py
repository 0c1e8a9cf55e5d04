"""llm/engine/schemas.py: what of a client's schema a grammar follows."""

from typing import Any

import pytest

from wherry.llm.engine.schemas import closed, loosened

NAMED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (NAMED, CLOSED),
        ({**NAMED, "additionalProperties": True}, {**NAMED, "additionalProperties": True}),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": CLOSED}),
        (
            {"$defs": {"x": NAMED}, "$ref": "#/$defs/x"},
            {"$defs": {"x": CLOSED}, "$ref": "#/$defs/x"},
        ),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"type": "object", "properties": {"properties": NAMED}},
            {
                "type": "object",
                "properties": {"properties": CLOSED},
                "additionalProperties": False,
            },
        ),
    ],
)
def test_what_a_schema_does_not_name_is_not_written(schema: Any, made: Any) -> None:
    assert closed(schema) == made


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"const": {"properties": {}}},
        {"allOf": [NAMED, {"properties": {"b": {}}, "required": ["b"]}]},
        {**NAMED, "anyOf": [{"required": ["b"]}, {"required": ["a"]}]},
        {**NAMED, "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        {**NAMED, "required": ["b"]},
        {**NAMED, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"properties": 3, "items": [1, None], "anyOf": {"a": 2}},
    ],
)
def test_a_schema_of_several_voices_is_left_alone(schema: Any) -> None:
    assert closed(schema) == schema


def test_an_object_is_open_only_where_several_subschemas_describe_it() -> None:
    colour = {"enum": ["red", "blue"]}
    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    made = closed(
        {
            "type": "object",
            "properties": {
                # As pydantic writes an enum with a default, and a model with one.
                "colour": {"allOf": [{"$ref": "#/$defs/Colour"}], "default": "red"},
                "point": {"allOf": [{"$ref": "#/$defs/Point"}], "description": "where"},
                "both": {"allOf": [NAMED, {"properties": {"b": NAMED}}]},
                "more": {**NAMED, "$ref": "#/$defs/Named"},
                "either": {"anyOf": [NAMED, {"type": "null"}]},
            },
            "$defs": {
                "Colour": colour,
                "Point": point,
                "Named": NAMED,
                "Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}},
            },
        }
    )
    properties, definitions = made["properties"], made["$defs"]
    assert made["additionalProperties"] is False
    assert definitions["Point"] == {**point, "additionalProperties": False}
    assert definitions["Node"]["additionalProperties"] is False
    assert properties["either"]["anyOf"][0] == CLOSED
    # An inner object that only one of them describes is closed, too.
    assert properties["both"] == {"allOf": [NAMED, {"properties": {"b": CLOSED}}]}
    assert properties["more"] == {**NAMED, "$ref": "#/$defs/Named"}
    assert definitions["Named"] == NAMED


def test_what_two_subschemas_say_of_one_inner_object_is_left_open() -> None:
    first: dict[str, Any] = {"properties": {"in": {"properties": {"a": {}}}}}
    second = {"properties": {"in": {"properties": {"b": {}}}, "list": {"items": NAMED}}}
    made = closed({"allOf": [first, second], "title": "x"})
    assert made["allOf"][0] == first
    assert made["allOf"][1]["properties"]["in"] == second["properties"]["in"]
    assert made["allOf"][1]["properties"]["list"] == {"items": CLOSED}


def test_references_of_an_inner_resource_begin_at_it() -> None:
    inner = {
        "$id": "urn:tool:0",
        "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {}}, "required": ["b"]}],
        "$defs": {"A": NAMED},
    }
    assert closed({"anyOf": [inner]}) == {"anyOf": [inner]}


def test_a_schema_whose_references_multiply_is_left_alone() -> None:
    every: dict[str, Any] = {"allOf": [{"properties": {str(i): {}}} for i in range(200)]}
    schema = {"$defs": {"e": every}, "anyOf": [{**NAMED, "$ref": "#/$defs/e"} for _ in range(200)]}
    assert closed(schema) is schema


def test_what_no_grammar_can_follow_is_left_out_and_its_place_named() -> None:
    llguidance = pytest.importorskip("llguidance")
    made, left_out = loosened(
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "format": "uri-reference"},
                "b": {"type": "array", "items": {"format": "x"}, "uniqueItems": True},
                "c": {"type": "string", "pattern": "(?=a)b"},
                "d": {"oneOf": [{"type": "string"}, {"minLength": 2}]},
                "e": {"type": "integer", "format": "int128", "not": {"const": 3}},
                "format": {"type": "string", "format": "date"},
                "f": {"type": "array", "uniqueItems": False},
            },
            "if": {"required": ["a"]},
            "then": {"required": ["b"]},
        }
    )
    assert sorted(left_out) == [
        "if", "properties.a.format", "properties.b.items.format", "properties.b.uniqueItems",
        "properties.c.pattern", "properties.e.not", "then",
    ]  # fmt: skip
    assert made["properties"]["format"] == {"type": "string", "format": "date"}
    assert made["properties"]["e"] == {"type": "integer", "format": "int128"}
    matcher = llguidance.LLMatcher
    assert matcher.validate_grammar(matcher.grammar_from_json_schema(made)) == ""
