"""What do the scheduling blocks of a config.pbtxt mean as settings of a model of ours?"""

from pathlib import Path

import numpy as np
import pytest

from wherry.models.config import QueuePolicy, SequenceBatching, SequenceControl, SequenceState
from wherry.models.config import model_config as made
from wherry.repository.pbtxt import parse
from wherry.repository.scheduling import inside, scheduling
from wherry.repository.triton_config import (
    TritonConfig,
    TritonSequenceBatching,
    TritonSequenceBatchingControl,
    TritonSequenceBatchingControlInput,
)
from wherry.values.errors import ConfigError

FOLDER = "nowhere"


def settings(text: str, folder: str = FOLDER) -> dict[str, object]:
    found = scheduling(parse(text, "config.pbtxt"), folder)
    made("m", {"max_batch_size": 8, **found})  # they are settings
    return found


def sequence(text: str, folder: str = FOLDER) -> SequenceBatching:
    found = settings(f"sequence_batching {{ {text} }}", folder)["sequence"]
    assert isinstance(found, SequenceBatching)
    return found


def test_nothing_said_is_one_request_at_a_time_as_in_triton() -> None:
    assert settings("max_batch_size: 4") == {
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
        scheduling(
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


def test_a_state_that_is_an_output_too_is_returned_and_the_model_sees_all_of_it() -> None:
    text = (
        'input { name: "X" data_type: TYPE_FP32 dims: 1 }'
        ' output { name: "O" data_type: TYPE_INT32 dims: [ -1, 2 ] }'
        f" sequence_batching {{ {STATE % ''}"
        ' control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID'
        " data_type: TYPE_UINT64 } } }"
    )
    config = parse(text, "config.pbtxt")
    found = scheduling(config, FOLDER)["sequence"]
    assert found.states[0].returned
    assert found.hidden_outputs == set()
    assert [tensor.name for tensor in inside(config).input] == ["X", "C", "I"]
    assert [tensor.name for tensor in inside(config).output] == ["O"]
    assert [tensor.name for tensor in config.input] == ["X"]
