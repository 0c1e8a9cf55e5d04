"""Is every answer of the form that was asked for, and its caller told if it cannot be?"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wherry
from wherry.core.values.errors import InvalidRequest
from wherry.llm import LLM, Delta
from wherry.llm.engine.constraint import MOST_CHARACTERS, AnswerForm, Matcher, closed, loosened
from wherry.llm.engine.sampling import Sampling

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


def test_references_and_single_alternatives_are_one_voice() -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer"}}}
    made = closed(
        {
            "type": "object",
            "properties": {
                # As pydantic writes a model with a default, and one that may be null.
                "point": {"allOf": [{"$ref": "#/$defs/Point"}], "description": "where"},
                "either": {"anyOf": [NAMED, {"type": "null"}]},
            },
            "$defs": {"Point": point, "Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}},
        }
    )
    assert made["additionalProperties"] is False
    assert made["properties"]["either"]["anyOf"][0] == CLOSED
    assert made["$defs"]["Point"] == {**point, "additionalProperties": False}
    assert made["$defs"]["Node"]["additionalProperties"] is False


def test_a_tool_whose_objects_have_several_voices_leaves_the_others_closed() -> None:
    both = {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {}}, "required": ["b"]}]}
    several = {"$id": "urn:tool:0", "properties": {"both": both}, "$defs": {"A": NAMED}}
    made = closed({"anyOf": [several, {"$id": "urn:tool:1", **NAMED}]})
    assert made == {"anyOf": [several, {"$id": "urn:tool:1", **CLOSED}]}


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


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runtime(checkpoint: Callable[..., Path]) -> Iterator[wherry.Runtime]:
    model = LLM(checkpoint("llama"), name="tiny", cache_gb=0.01, threads=1)
    with wherry.Runtime(model) as runtime:
        # The thread that reads grammars starts with the first one, and stays.
        list(runtime.stream("tiny", prompt="x", parameters={"constraint": {"regex": "a"}}))
        yield runtime


@pytest.fixture
def ask(runtime: wherry.Runtime) -> Ask:
    def ask(constraint: dict[str, Any], **wishes: Any) -> list[dict[str, Any]]:
        parameters = {"constraint": constraint, "temperature": 0.0, "max_tokens": 60, **wishes}
        return list(runtime.stream("tiny", prompt="x", parameters=parameters))

    return ask


def text(deltas: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(delta["text"] for delta in deltas if delta["index"] == index)


def test_an_answer_that_ends_is_of_its_form_and_one_that_is_cut_says_so(ask: Ask) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [True]}}, "required": ["a"]}
    wanted = {"json_schema": schema}
    whole = ask(wanted)
    assert json.loads(text(whole)) == {"a": True}
    assert whole[-1]["finish_reason"] == "stop"
    assert ask(wanted, max_tokens=3)[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("wish", [{"min_tokens": 20}, {"ignore_eos": True}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_at_its_end_ends_whatever_else_was_wished(
    ask: Ask, wish: dict[str, Any], temperature: float
) -> None:
    deltas = ask({"choice": ["yes", "no"]}, temperature=temperature, **wish)
    assert text(deltas) in ("yes", "no")
    assert deltas[-1]["finish_reason"] == "stop"


def test_what_may_go_on_goes_on_to_the_least_number_of_tokens(ask: Ask) -> None:
    deltas = ask({"regex": "a+"}, min_tokens=7, max_tokens=30)
    assert set(text(deltas)) == {"a"}
    assert sum(len(delta["token_ids"]) for delta in deltas) >= 7


def test_each_of_several_answers_is_held_to_the_form_by_itself(ask: Ask) -> None:
    deltas = ask({"choice": ["yes", "no"]}, n=8, temperature=1.0, seed=3)
    answers = [text(deltas, index) for index in range(8)]
    assert set(answers) == {"yes", "no"}


@pytest.mark.parametrize(
    ("constraint", "problem"),
    [
        ({"json_schema": {"$ref": "#"}}, "no text fits it"),
        ({"json_schema": {"type": "string", "minLength": 5, "maxLength": 2}}, "minLength"),
        ({"regex": "("}, "regex parse error: unclosed group"),
        ({"json_schema": {"type": "string", "pattern": "(?=a)b"}}, "error: look-around"),
        ({"grammar": ""}, "Empty grammar"),
        ({"regex": "a", "choice": ["b"]}, "exactly one of"),
        ({}, "exactly one of"),
        ({"choice": ["x" * MOST_CHARACTERS]}, "at most 131072 are read"),
    ],
)
def test_a_form_that_cannot_be_is_refused_with_its_reason(
    ask: Ask, constraint: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem) as error:
        ask(constraint)
    assert error.value.field == "constraint"


def test_a_form_that_breaks_off_on_the_way_is_an_error_and_no_answer(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = Matcher.accept

    def breaks(self: Matcher, token: int) -> None:
        accept(self, 255)  # a byte that "a" is not: llguidance is in its error state from here on

    monkeypatch.setattr(Matcher, "accept", breaks)
    with pytest.raises(InvalidRequest, match="could not be brought to its end"):
        ask({"regex": "aaaaaa"})


class SlowReading:
    """Grammars that are read when the test says so."""

    def __init__(self, model: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        read = model._prompts.grammars.constraint

        def constraint(wanted: AnswerForm) -> Matcher:
            self.may_end.wait()
            return read(wanted)

        monkeypatch.setattr(model._prompts.grammars, "constraint", constraint)


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> Iterator[LLM]:
    model = LLM(checkpoint("llama"), name="tiny", cache_gb=0.01, threads=1)
    model.load(wherry.Device("cpu"))
    yield model
    model.unload()


HELD = Sampling(constraint=AnswerForm(choice=("yes",)), temperature=0.0)


def test_others_go_on_while_a_form_is_read(model: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = SlowReading(model, monkeypatch)
    other = model.start(prompt="y", parameters=Sampling(ignore_eos=True))
    held = model.start(prompt="x", parameters=HELD)
    tokens = [
        len(delta.token_ids)
        for _ in range(20)
        for step in model.step([other, held])[:1]
        for delta in step.responses
    ]
    assert sum(tokens) > 5
    assert held.answers is None
    reading.may_end.set()
    deltas: list[Delta] = []
    while not (step := model.step([other, held])[1]).done:
        deltas += step.responses
    assert "".join(delta.text for delta in [*deltas, *step.responses]) == "yes"


def test_one_who_leaves_while_its_form_is_read_never_starts(
    model: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SlowReading(model, monkeypatch)
    held = model.start(prompt="x", parameters=HELD)
    model.stop(held)
    reading.may_end.set()
    assert held.reading is not None
    held.reading.result()
    assert model.step([]) == []
    assert held.answers is None
    assert not model.engine.busy
