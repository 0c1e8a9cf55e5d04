from __future__ import annotations

import math
import re
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from tests.unit.triton.repository.strategies import configs
from wherry.triton.repository import pbtxt
from wherry.triton.repository.json_form import from_json, set_fields
from wherry.triton.repository.schema import BadConfig
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonOutput,
    TritonParameter,
    TritonQueuePolicy,
    TritonSequenceBatching,
    TritonSequenceBatchingStrategyDirect,
    TritonTensorReshape,
)


def problems(text: str) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        pbtxt.parse(text, "m/config.pbtxt")
    return list(caught.value.problems)


def test_a_whole_configuration_is_read_as_it_is_meant() -> None:
    config = pbtxt.parse(
        """
        # how it is served
        name: "sentiment" ; backend: "python",
        max_batch_size: 0x10
        input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] reshape: { shape: [ ] } },
                < name: "scale" data_type: 11 dims: 017 dims: -1 optional: true > ]
        output { name: "label" data_type: TYPE_STRING dims: [ 1 ] label_filename: 'labels.txt' }
        dynamic_batching {
          preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
          priority_levels: 2 default_priority_level: 1
          priority_queue_policy { key: 2 value: { timeout_action: DELAY max_queue_size: 3 } }
        }
        parameters: { key: "a" value: { string_value: "1" } }
        parameters [ { key: "b", value { string_value: "2" } }, { key: "c" } ]
        version_policy: { all { } }
        """
    )

    assert config.name == "sentiment"
    assert config.max_batch_size == 16
    assert config.input == [
        TritonInput(
            name="text", data_type="TYPE_STRING", dims=[1], reshape=TritonTensorReshape(shape=[])
        ),
        TritonInput(name="scale", data_type="TYPE_FP32", dims=[15, -1], optional=True),
    ]
    assert config.output == [
        TritonOutput(name="label", data_type="TYPE_STRING", dims=[1], label_filename="labels.txt")
    ]
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.preferred_batch_size == [4, 8]
    assert config.dynamic_batching.priority_queue_policy == {
        2: TritonQueuePolicy(timeout_action="DELAY", max_queue_size=3)
    }
    assert config.parameters == {
        "a": TritonParameter(string_value="1"),
        "b": TritonParameter(string_value="2"),
        "c": TritonParameter(),
    }
    assert config.version_policy is not None
    assert config.version_policy.all is not None


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ('"plain"', "plain"),
        ("'single \"quotes\"'", 'single "quotes"'),
        ('"one" \'two\'\n"three"', "onetwothree"),
        (r'"\n\t\\\"\'"', "\n\t\\\"'"),
        (r'"\101\x42\u00e9\U0001F600"', "ABé\N{GRINNING FACE}"),
        (r'"\303\251"', "é"),
        ('"é # no comment"', "é # no comment"),
    ],
)
def test_strings(literal: str, text: str) -> None:
    assert pbtxt.parse(f"name: {literal}").name == text


@pytest.mark.parametrize(
    ("literal", "number"),
    [("1", 1.0), ("-.5", -0.5), ("2.5e-1f", 0.25), ("inf", math.inf), ("-Infinity", -math.inf)],
)
def test_numbers_with_a_fraction(literal: str, number: float) -> None:
    text = f"sequence_batching {{ direct {{ minimum_slot_utilization: {literal} }} }}"

    config = pbtxt.parse(text, grammar_only=True)

    assert config.sequence_batching == TritonSequenceBatching(
        direct=TritonSequenceBatchingStrategyDirect(minimum_slot_utilization=number)
    )


def test_every_mistake_is_told_with_its_line_and_what_was_meant() -> None:
    assert problems(
        """name: 3
max_batch_sise: { a: [ 1 ] }
input { name: "a" data_type: TYPE_FP33 dims: [0, "x", 1.5] dimms: 4 }
input { name: "a" data_type: TYPE_FP32 dims: 1 }
max_batch_size: 8  max_batch_size: 4
dynamic_batching { preferred_batch_size: [16, -1] }
instance_group [ { kind: KIND_CPU gpus: [0] count: 99999 } ]
parameters { key: "a" value: "b" }
"""
    ) == [
        "m/config.pbtxt:1: name: expected a string, not 3",
        "m/config.pbtxt:2: max_batch_sise: unknown field 'max_batch_sise';"
        " did you mean 'max_batch_size'?",
        "m/config.pbtxt:3: input[0].data_type: unknown value 'TYPE_FP33';"
        " did you mean 'TYPE_FP32'?",
        "m/config.pbtxt:3: input[0].dims[1]: expected a whole number, not a string",
        "m/config.pbtxt:3: input[0].dims[2]: expected a whole number, not 1.5",
        "m/config.pbtxt:3: input[0].dimms: unknown field 'dimms'; did you mean 'dims'?",
        "m/config.pbtxt:3: input[0].dims[0]: 0 must be at least 1, or -1 for any size",
        "m/config.pbtxt:4: input[1]: input 'a' is there already",
        "m/config.pbtxt:5: max_batch_size: it is set twice",
        "m/config.pbtxt:6: dynamic_batching.preferred_batch_size[0]: 16 is more than"
        " max_batch_size (4)",
        "m/config.pbtxt:6: dynamic_batching.preferred_batch_size[1]: -1 must be at least 1",
        "m/config.pbtxt:7: instance_group[0].count: 99999 instances are too many",
        "m/config.pbtxt:7: instance_group[0].gpus: KIND_CPU has no gpus",
        "m/config.pbtxt:8: parameters.a: expected a message in { }, not '\"b\"'",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("input {\n name: 'a'\n", ":3: input[0]: expected '}' for the bracket of line 1"),
        ("input [ { }", ":1: input: expected ',' or ']', not the end of the file"),
        ("input [ { }, ]", ":1: input: expected a value after ','"),
        ("max_batch_size 8", ":1: max_batch_size: expected ':' after 'max_batch_size', not '8'"),
        ('name: "a', ':1: a string without its end: "a'),
        ('name: "a\nb"', ':1: a string without its end: "a'),
        ("name: €", ":1: unreadable: €"),
        ("max_batch_size: 8bit", ":1: unreadable: 8bit"),
        ("max_batch_size: 08", ":1: max_batch_size: expected a whole number, not 08"),
        (
            "max_batch_size: 99999999999999999999",
            ":1: max_batch_size: 99999999999999999999 is out of range",
        ),
        ("3: 4", ":1: expected the name of a field, not '3'"),
        ("}", ":1: expected the name of a field, not '}'"),
        ("name: python", ':1: name: expected a string: write "python"'),
        (r'name: "a\qb"', r":1: name: unknown escape \q in a string; write \\ for \\"[:-1]),
        (r'name: "\377"', ":1: name: the string is not UTF-8 text"),
        ("name: [1]", ":1: name: expected a string, not a list"),
        (
            "response_cache { enable: yes }",
            ":1: response_cache.enable: expected true or false, not yes",
        ),
        (
            "version_policy { all { } latest { } }",
            ":1: version_policy: only one of latest and all may be set",
        ),
        (
            "dynamic_batching { }\nsequence_batching { }",
            ":1: only one of dynamic_batching and sequence_batching may be set",
        ),
        (
            "parameters { key: 'a' } parameters { key: 'a' }",
            ":1: parameters.a: this key is there already",
        ),
    ],
)
def test_a_mistake(text: str, problem: str) -> None:
    assert problems(text) == [f"m/config.pbtxt{problem}"]


def test_messages_within_messages_have_an_end() -> None:
    deep = "optimization { unknown " + "{ x " * 200 + "}" * 201
    assert "did you mean" not in problems(deep)[0]
    assert problems("optimization { cuda { graph_spec { graph_lower_bound { input { key: 'a'")


def as_protobuf(config: TritonConfig) -> Any:
    return json_format.ParseDict(
        _without_infinity(set_fields(config)), model_config_pb2.ModelConfig()
    )


@given(configs())
def test_what_protobuf_writes_is_read_as_the_same(config: TritonConfig) -> None:
    message = as_protobuf(config)
    for text in (text_format.MessageToString(message), str(message)):
        read = pbtxt.parse(text, grammar_only=True)
        assert _but_for_defaults(read) == _but_for_defaults(config)
    as_json = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert _but_for_defaults(from_json(as_json)) == _but_for_defaults(config)


WORDS = ["name", "input", "dims", "data_type", "TYPE_FP32", "parameters", "key", "value", "all"]
MARKS = [*":{}[]<>,;-#€", "\n", "1", "0x1", "1.5", "inf", "true", '"a"', '"\\x"', "version_policy"]


@given(st.lists(st.sampled_from(WORDS + MARKS), max_size=20).map(" ".join) | st.text(max_size=20))
def test_any_text_is_a_configuration_or_a_list_of_problems(text: str) -> None:
    try:
        pbtxt.parse(text)
    except BadConfig as error:
        told = error.problems
    else:
        return
    assert told
    assert all(re.match(r"config\.pbtxt:\d+: .", problem) for problem in told)


def _but_for_defaults(value: Any) -> Any:
    """What protobuf does not tell apart: our defaults that are not its own, written or not."""
    if isinstance(value, TritonConfig):
        return _but_for_defaults(set_fields(value))
    if isinstance(value, dict):
        ours = ("num_versions", "model_version", "count", "enable")
        return {name: _but_for_defaults(one) for name, one in value.items() if name not in ours}
    return [_but_for_defaults(one) for one in value] if isinstance(value, list) else value


def _without_infinity(value: Any) -> Any:
    """protobuf's JSON has a text for it."""
    if isinstance(value, dict):
        return {name: _without_infinity(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_infinity(one) for one in value]
    return str(value).replace("inf", "Infinity") if value in (math.inf, -math.inf) else value


def test_each_blank_of_a_template_is_a_problem_and_the_rest_is_read() -> None:
    """As in the templates of TensorRT-LLM, whose script fills in ${...}."""
    told = problems(
        """max_batch_size: ${triton_max_batch_size}
        model_transaction_policy { decoupled: ${decoupled_mode} }
        output { name: "o" data_type: ${logits_datatype} dims: [ ${beams}, -1 ] }
        nothing: ${x}
        optimization: ${y}
        max_bach_size: 1"""
    )

    assert [line.split(": ")[:3] for line in told] == [
        ["m/config.pbtxt:1", "max_batch_size", told[0].split(": ")[2]],
        ["m/config.pbtxt:2", "model_transaction_policy.decoupled", told[1].split(": ")[2]],
        ["m/config.pbtxt:3", "output[0].data_type", told[2].split(": ")[2]],
        ["m/config.pbtxt:3", "output[0].dims[0]", told[3].split(": ")[2]],
        ["m/config.pbtxt:4", "nothing", told[4].split(": ")[2]],
        ["m/config.pbtxt:5", "optimization", told[5].split(": ")[2]],
        ["m/config.pbtxt:6", "max_bach_size", told[6].split(": ")[2]],
    ]
    assert "${triton_max_batch_size} is not filled in: write a whole number" in told[0]
    assert "${decoupled_mode} is not filled in: write true or false" in told[1]


def test_what_depends_on_a_batch_size_that_is_not_filled_in_is_no_problem() -> None:
    (told,) = problems(
        "max_batch_size: ${n}\n"
        'input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { shape: [ ] } }\n'
        "dynamic_batching { preferred_batch_size: 8 }"
    )

    assert "${n} is not filled in" in told


def test_the_fields_before_a_mistake_that_ends_the_reading_are_kept() -> None:
    config, told = pbtxt.read('backend: "dali" max_batch_size: 3 ] name: "m"')

    assert told == ["config.pbtxt:1: expected the name of a field, not ']'"]
    assert (config.backend, config.max_batch_size, config.name) == ("dali", 3, "")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("TYPE_BYTES", "TYPE_STRING"), ("TYPE_FLOAT", "TYPE_FP32"), ("TYPE_DOUBLE", "TYPE_FP64")],
)
def test_other_names_of_datatypes_are_told_theirs(written: str, meant: str) -> None:
    (told,) = problems(f'input {{ name: "x" data_type: {written} dims: 1 }}')

    assert told.endswith(f"unknown value '{written}'; did you mean '{meant}'?")
