from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests.unit.triton.repository.strategies import configs
from wherry.triton.repository.json_form import from_json, patched, set_fields, to_json
from wherry.triton.repository.schema import BadConfig
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDynamicBatching,
    TritonInput,
    TritonParameter,
    TritonQueuePolicy,
)


@given(configs())
def test_what_is_written_is_read_as_the_same(config: TritonConfig) -> None:
    assert from_json(set_fields(config)) == config


def test_numbers_may_be_strings_enums_numbers_and_names_in_camel_case() -> None:
    config = from_json(
        json.dumps(
            {
                "maxBatchSize": "8",
                "input": [{"name": "x", "dataType": 11, "dims": ["-1", 4.0]}],
                "dynamic_batching": {
                    "priorityQueuePolicy": {"1": {"timeout_action": "DELAY"}},
                    "default_queue_policy": None,
                },
            }
        )
    )

    assert config == TritonConfig(
        max_batch_size=8,
        input=[TritonInput(name="x", data_type="TYPE_FP32", dims=[-1, 4])],
        dynamic_batching=TritonDynamicBatching(
            priority_queue_policy={1: TritonQueuePolicy(timeout_action="DELAY")}
        ),
    )


def test_every_mistake_is_told() -> None:
    with pytest.raises(BadConfig) as caught:
        from_json(
            {
                "max_batch_sise": 1,
                "input": {},
                "output": [{"name": 3, "dims": ["x", 1.5, True], "data_type": "TYPE_FP33"}],
                "parameters": {"a": "b"},
                "dynamic_batching": {
                    "preferred_batch_size": [2**31],
                    "priority_levels": -1,
                    "priority_queue_policy": {"-2": {}},
                },
                "ensemble_scheduling": {},
            }
        )

    assert caught.value.problems == (
        "config: max_batch_sise: unknown field 'max_batch_sise'; did you mean 'max_batch_size'?",
        "config: input: expected a list, not an object",
        "config: output[0].name: expected a string, not 3",
        "config: output[0].dims[0]: expected a whole number, not 'x'",
        "config: output[0].dims[1]: expected a whole number, not 1.5",
        "config: output[0].dims[2]: expected a whole number, not True",
        "config: output[0].data_type: unknown value 'TYPE_FP33'; did you mean 'TYPE_FP32'?",
        "config: parameters.a: expected an object, not 'b'",
        f"config: dynamic_batching.preferred_batch_size[0]: {2**31} is out of range",
        "config: dynamic_batching.priority_levels: -1 must not be negative",
        "config: dynamic_batching.priority_queue_policy.-2: -2 must not be negative",
        "config: only one of dynamic_batching and ensemble_scheduling may be set",
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '"a"', "[" * 100_000, b"\xff{}"])
def test_what_is_no_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadConfig):
        from_json(text)


def test_a_patch_changes_what_it_names_and_nothing_else() -> None:
    config = TritonConfig(
        name="m",
        max_batch_size=4,
        input=[TritonInput(name="x", data_type="TYPE_FP32", dims=[4])],
        dynamic_batching=TritonDynamicBatching(max_queue_delay_microseconds=5),
        parameters={"a": TritonParameter(string_value="1"), "b": TritonParameter(string_value="2")},
    )

    changed = patched(
        config,
        {
            "maxBatchSize": 16,
            "dynamic_batching": {"preferredBatchSize": [8]},
            "parameters": {"a": None, "c": {"string_value": "3"}},
        },
    )

    assert changed == TritonConfig(
        name="m",
        max_batch_size=16,
        input=config.input,
        dynamic_batching=TritonDynamicBatching(
            max_queue_delay_microseconds=5, preferred_batch_size=[8]
        ),
        parameters={"b": TritonParameter(string_value="2"), "c": TritonParameter(string_value="3")},
    )
    assert patched(changed, '{"dynamic_batching": null}').dynamic_batching is None


def test_a_patch_with_a_mistake_is_refused() -> None:
    with pytest.raises(BadConfig, match="patch: max_batch_sise: unknown field"):
        patched(TritonConfig(), {"max_batch_sise": 4})


def test_shown_is_every_plain_field_and_what_triton_fills_in() -> None:
    shown = to_json(
        TritonConfig(
            name="m",
            backend="python",
            max_batch_size=8,
            input=[TritonInput(name="x", data_type="TYPE_FP32", dims=[4])],
            dynamic_batching=TritonDynamicBatching(),
            parameters={"a": TritonParameter(string_value="b")},
        )
    )

    assert shown == {
        "name": "m",
        "platform": "",
        "backend": "python",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [
            {
                "name": "x",
                "data_type": "TYPE_FP32",
                "format": "FORMAT_NONE",
                "dims": [4],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
        ],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "dynamic_batching": {
            "preferred_batch_size": [8],
            "max_queue_delay_microseconds": 0,
            "preserve_ordering": False,
            "priority_levels": 0,
            "default_priority_level": 0,
            "priority_queue_policy": {},
        },
        "instance_group": [
            {
                "name": "m",
                "kind": "KIND_CPU",
                "count": 1,
                "gpus": [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "model.py",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {"a": {"string_value": "b"}},
        "model_warmup": [],
    }
