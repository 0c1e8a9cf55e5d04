"""What do the fields of a Triton configuration mean as settings of a model here, and back?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.models.config import (
    InstanceGroup,
    ModelConfig,
    QueuePolicy,
    SequenceBatching,
    SequenceControl,
    SequenceState,
)
from wherry.core.models.config import model_config as made
from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import BYTES, DATATYPES, Form, TensorSpec
from wherry.core.values.errors import ConfigError
from wherry.triton.repository import mapping
from wherry.triton.repository.json_form import filled, from_json
from wherry.triton.repository.pbtxt import parse
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonSequenceBatching,
    TritonSequenceBatchingControl,
    TritonSequenceBatchingControlInput,
    TritonTensorReshape,
)
from wherry.triton.repository.validate import problems_of

FOLDER = "nowhere"


def settings(text: str, folder: str = FOLDER) -> dict[str, object]:
    found = mapping.settings(parse(text, "config.pbtxt"), folder)
    made("m", {**found, "max_batch_size": 8})  # they are settings
    return found


def sequence(text: str, folder: str = FOLDER) -> SequenceBatching:
    found = settings(f"sequence_batching {{ {text} }}", folder)["sequence"]
    assert isinstance(found, SequenceBatching)
    return found


def test_nothing_said_is_one_request_at_a_time_as_in_triton() -> None:
    assert settings("max_batch_size: 4") == {
        "max_batch_size": 4,
        "instances": 1,
        "max_queue_size": None,
        "priority_levels": 0,
        "share_batches": False,
    }


def test_an_empty_block_leaves_the_batcher_to_find_out_by_itself() -> None:
    found = settings("dynamic_batching { }")
    assert "max_queue_delay" not in found
    assert "preferred_batch_sizes" not in found
    assert (found["priority_levels"], found["queue_policies"]) == (0, ())


def test_what_is_said_holds_and_microseconds_become_seconds() -> None:
    found = settings(
        "dynamic_batching { preferred_batch_size: [ 8, 4, 4 ] max_queue_delay_microseconds: 2500"
        " preserve_ordering: true priority_levels: 3 default_priority_level: 2 }"
    )
    assert found["preferred_batch_sizes"] == (4, 8)
    assert found["wait_when_mixed"] is False
    assert found["max_queue_delay"] == 0.0025
    assert found["preserve_ordering"] is True
    assert (found["priority_levels"], found["default_priority"]) == (3, 2)


def test_a_queue_policy_is_of_all_levels_or_of_one() -> None:
    found = settings(
        "dynamic_batching { priority_levels: 2 default_priority_level: 1"
        " default_queue_policy { default_timeout_microseconds: 300000 max_queue_size: 5 }"
        " priority_queue_policy { key: 2 value { timeout_action: DELAY"
        " default_timeout_microseconds: 50000 allow_timeout_override: true } } }"
    )
    assert found["queue_policies"] == (
        QueuePolicy(timeout=0.3, max_queue_size=5, allow_timeout_override=False, triton=True),
        QueuePolicy(level=2, timeout=0.05, timeout_action="delay", triton=True),
    )


def test_a_parameter_says_that_no_request_may_run_twice() -> None:
    set_fields = 'parameters {{ key: "RUN_AGAIN" value {{ string_value: "{}" }} }}'
    assert settings(set_fields.format("false"))["run_again"] is False
    assert settings(set_fields.format("true"))["run_again"] is True
    assert "run_again" not in settings("")
    with pytest.raises(ConfigError, match="RUN_AGAIN"):
        settings(set_fields.format("no"))


def test_the_response_cache_is_a_setting() -> None:
    assert settings("response_cache { enable: true }")["response_cache"] is True
    assert settings("response_cache { }")["response_cache"] is False


def test_sequences_are_direct_unless_they_are_oldest() -> None:
    assert sequence("") == SequenceBatching()
    direct = settings(
        "sequence_batching { max_sequence_idle_microseconds: 5000000"
        " direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 0.5 } }"
    )
    assert direct["max_queue_delay"] == 0.001
    assert direct["sequence"] == SequenceBatching(
        max_sequence_idle=5.0, minimum_slot_utilization=0.5
    )
    oldest = settings(
        "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 9"
        " preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 10 preserve_ordering: true } }"
    )
    assert oldest["sequence"] == SequenceBatching(
        strategy="oldest", max_candidate_sequences=9, iterative=True
    )
    assert oldest["preferred_batch_sizes"] == (4,)
    assert oldest["preserve_ordering"] is True


def test_controls_have_a_kind_a_name_two_values_and_a_datatype() -> None:
    found = sequence(
        'control_input [ { name: "S" control [ { kind: CONTROL_SEQUENCE_START'
        " fp32_false_true: [ -1, 2 ] } ] },"
        ' { name: "E" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } },'
        ' { name: "R" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },'
        ' { name: "C" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] } ]'
    )
    assert found.controls == (
        SequenceControl("start", "S", -1.0, 2.0, "FP32"),
        SequenceControl("end", "E", 0.0, 1.0, "BOOL"),
        SequenceControl("ready", "R", 0.0, 1.0, "INT32"),
        SequenceControl("id", "C", datatype="BYTES"),
    )


def test_a_control_without_its_values_names_itself() -> None:
    wrong = TritonSequenceBatchingControlInput(name="S", control=[TritonSequenceBatchingControl()])
    with pytest.raises(ConfigError, match="control 'S' needs two values"):
        mapping.settings(
            TritonConfig(sequence_batching=TritonSequenceBatching(control_input=[wrong])), FOLDER
        )


STATE = (
    """state [ { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [ -1, 2 ] %s } ]"""
)


def test_a_state_starts_with_zeros_or_with_a_file(tmp_path: Path) -> None:
    assert sequence(STATE % "").states == (SequenceState("I", "O", "INT32", (1, 2)),)
    zeros = "initial_state { data_type: TYPE_INT32 dims: [ 3, 2 ] zero_data: true }"
    assert sequence(STATE % zeros).states == (SequenceState("I", "O", "INT32", (3, 2)),)
    (tmp_path / "initial_state").mkdir()
    data = np.arange(2, dtype=np.int32).tobytes()
    (tmp_path / "initial_state" / "first").write_bytes(data)
    from_file = 'initial_state { data_type: TYPE_INT32 dims: [ 1, 2 ] data_file: "first" }'
    assert sequence(STATE % from_file, str(tmp_path)).states == (
        SequenceState("I", "O", "INT32", (1, 2), data),
    )
    with pytest.raises(ConfigError, match=r"initial_state/first: No such file"):
        sequence(STATE % from_file)


def test_a_state_that_is_an_output_too_is_returned() -> None:
    output = ' output { name: "O" data_type: TYPE_INT32 dims: [ -1, 2 ] }'
    found = settings(f"{output} sequence_batching {{ {STATE % ''} }}")["sequence"]
    assert isinstance(found, SequenceBatching)
    assert found.states[0].returned
    assert found.hidden_outputs == set()


# And back, for clients

NAMES = st.text("abc", min_size=1, max_size=4)


def signature(*inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = ()) -> Signature:
    return Signature(inputs, outputs, False, False, False, "named")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_queue_delay": 0.5, "preferred_batch_sizes": (4,), "preserve_ordering": True},
        {"priority_levels": 3, "default_priority": 2, "response_cache": True},
        {"instances": (InstanceGroup(2, "cuda:1"), InstanceGroup(3, "cpu"))},
        {"priority_levels": 0, "sequence": SequenceBatching(max_sequence_idle=2.0, iterative=True)},
        {
            "priority_levels": 0,
            "sequence": SequenceBatching(strategy="oldest", max_candidate_sequences=9),
            "preferred_batch_sizes": (4,),
        },
    ],
)
def test_clients_see_how_requests_are_batched(settings: dict[str, Any]) -> None:
    config = ModelConfig(name="m", max_batch_size=8, **settings)
    triton = mapping.triton_config(config, signature())
    assert not list(problems_of(triton))
    assert from_json(filled(triton)) == triton
    back = made("m", mapping.settings(triton, FOLDER))
    for field, value in settings.items():
        assert getattr(back, field) == value


@st.composite
def tensors(draw: st.DrawFn) -> TensorSpec:
    datatype = draw(st.sampled_from(sorted(DATATYPES.values(), key=str)))
    form = Form.BYTES if datatype is BYTES else Form.ARRAY
    shape = draw(st.lists(st.integers(1, 9) | st.just(-1), min_size=1, max_size=3))
    return TensorSpec(draw(NAMES), datatype, tuple(shape), form)


@given(st.lists(tensors(), max_size=3), st.lists(tensors(), max_size=3), st.booleans())
def test_a_round_trip_keeps_the_signature(
    inputs: list[TensorSpec], outputs: list[TensorSpec], optional: bool
) -> None:
    inputs = [replace(spec, optional=optional) for spec in inputs]
    before = signature(*inputs, outputs=tuple(outputs))
    config = ModelConfig(name="m", max_batch_size=8)
    assert mapping.signature(mapping.triton_config(config, before)) == before


def test_a_row_of_one_element_is_reshaped_as_triton_has_no_tensor_without_dimensions() -> None:
    scalar = TensorSpec("x", DATATYPES["FP32"], (), Form.ARRAY)
    triton = mapping.triton_config(ModelConfig(name="m", max_batch_size=8), signature(scalar))
    assert (triton.input[0].dims, triton.input[0].reshape) == ([1], TritonTensorReshape(shape=[]))
