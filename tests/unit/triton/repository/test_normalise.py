"""Which inputs and outputs does a model have that its callers do not see?"""

from __future__ import annotations

import pytest

from wherry.triton.repository.mapping import settings
from wherry.triton.repository.normalise import inside, normalised
from wherry.triton.repository.pbtxt import parse
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDynamicBatching,
    TritonInstanceGroup,
    TritonSequenceBatching,
    TritonSequenceBatchingStrategyOldest,
)


def test_what_is_filled_in_does_not_reach_the_original() -> None:
    config = TritonConfig(
        name="m",
        max_batch_size=4,
        dynamic_batching=TritonDynamicBatching(),
        instance_group=[TritonInstanceGroup()],
    )

    shown = normalised(config)

    assert shown.dynamic_batching is not None
    assert shown.dynamic_batching.preferred_batch_size == [4]
    assert config.dynamic_batching == TritonDynamicBatching()
    assert config.instance_group == [TritonInstanceGroup()]


def test_instances_go_to_the_gpus_where_there_are_some() -> None:
    config = TritonConfig(
        name="m",
        instance_group=[TritonInstanceGroup(), TritonInstanceGroup(kind="KIND_CPU", count=3)],
    )

    shown = normalised(config, gpus=[0, 1])

    assert shown.instance_group == [
        TritonInstanceGroup(name="m_0", kind="KIND_GPU", count=1, gpus=[0, 1]),
        TritonInstanceGroup(name="m_1", kind="KIND_CPU", count=3),
    ]


@pytest.mark.parametrize(
    ("backend", "platform", "count"),
    [("onnxruntime", "onnxruntime_onnx", 2), ("pytorch", "pytorch_libtorch", 1), ("python", "", 1)],
)
def test_a_backend_has_its_platform_and_its_number_of_instances_on_the_cpu(
    backend: str, platform: str, count: int
) -> None:
    groups = [TritonInstanceGroup(kind="KIND_CPU"), TritonInstanceGroup(kind="KIND_CPU", count=5)]
    config = TritonConfig(name="m", backend=backend, instance_group=groups)
    shown = normalised(config)
    assert shown.platform == platform
    assert [group.count for group in shown.instance_group] == [count, 5]
    (first, second) = settings(config, "")["instances"]
    assert (first.count, second.count) == (count, 5)
    (default,) = normalised(TritonConfig(name="m", backend=backend)).instance_group
    assert default.count == count
    assert normalised(TritonConfig(name="m", backend=backend), [0]).instance_group[0].count == 1
    set_fields = TritonConfig(name="m", backend=backend, platform="torch_aoti")
    assert normalised(set_fields).platform == "torch_aoti"


def test_sequences_are_idle_for_a_second_at_most() -> None:
    config = TritonConfig(
        max_batch_size=2,
        sequence_batching=TritonSequenceBatching(oldest=TritonSequenceBatchingStrategyOldest()),
    )

    shown = normalised(config).sequence_batching

    assert shown is not None
    assert shown.max_sequence_idle_microseconds == 1_000_000
    assert shown.oldest is not None
    assert shown.oldest.preferred_batch_size == [2]


def test_an_ensemble_has_neither_instances_nor_optimization() -> None:
    shown = normalised(TritonConfig(platform="ensemble"))

    assert shown.instance_group == []
    assert shown.optimization is None


TEXT = """
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "O" data_type: TYPE_INT32 dims: [ -1, 2 ] }
sequence_batching {
  state [
    { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [ -1, 2 ] },
    { input_name: "J" output_name: "P" data_type: TYPE_INT64 dims: 3 }
  ]
  control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  control_input {
    name: "S" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] }
  }
}
"""


def test_a_model_sees_controls_and_states_beside_what_its_callers_send_and_get() -> None:
    config = parse(TEXT)
    seen = inside(config)
    assert [(one.name, one.data_type, one.dims) for one in seen.input] == [
        ("X", "TYPE_FP32", [1]),
        ("C", "TYPE_UINT64", [1]),
        ("S", "TYPE_BOOL", [1]),
        ("I", "TYPE_INT32", [-1, 2]),
        ("J", "TYPE_INT64", [3]),
    ]
    assert [tensor.name for tensor in seen.output] == ["O", "P"]
    assert [tensor.name for tensor in config.input] == ["X"]


def test_a_model_without_sequences_sees_what_its_callers_do() -> None:
    config = parse("max_batch_size: 4")
    assert inside(config) is config
