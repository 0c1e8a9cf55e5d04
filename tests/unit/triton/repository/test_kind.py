"""Which inputs and outputs does a model have that its callers do not see?"""

from wherry.triton.repository.kind import inside
from wherry.triton.repository.pbtxt import parse

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
