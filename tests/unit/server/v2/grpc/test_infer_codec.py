"""ModelInferRequest to columns, columns to ModelInferResponse: tables of what may come."""

import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from msgspec.structs import replace

import wherry
from tests.every_datatype import NUMBERS as ALL_NUMBERS
from wherry.core.api import Array
from wherry.core.values.errors import BadModelOutput, InvalidRequest, RegionNotFound, Unsupported
from wherry.core.values.request import InferResponse
from wherry.server.calls.offload import LARGE_BYTES, LARGE_ELEMENTS
from wherry.server.grpc.proto import load
from wherry.server.grpc.wire import Values
from wherry.server.grpc.wire_numbers import Malformed
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.grpc.infer_codec import CONTENTS_FIELD, InferCodec
from wherry.server.v2.model_tensors import DecodedRequest, ModelTensors
from wherry.server.v2.shared_memory import SharedMemory

SCHEMA = load("v2.proto", "model_config.proto")
REQUEST = SCHEMA.messages["ModelInferRequest"]
RESPONSE = SCHEMA.messages["ModelInferResponse"]

#: By datatype, as far as `contents` has a field for it.
NUMBERS = {name: values for name, values in ALL_NUMBERS.items() if name not in ("FP16", "BF16")}


class Out(TypedDict):
    total: Annotated[np.ndarray, wherry.FP32[3]]
    name: list[str]


@wherry.model(max_batch_size=4)
def pair(
    x: Annotated[np.ndarray, wherry.FP32[3]], name: list[str], note: list[bytes] | None = None
) -> Out:
    raise NotImplementedError


def codec_of(model: wherry.Model, *, views: bool = True, **options: Any) -> InferCodec:
    config = model.config()
    tensors = ModelTensors(config, model.signature(config.name), **options)
    return InferCodec(tensors, RESPONSE, views=views)


def echo_of(datatype: str, shape: Any = 3, **options: Any) -> InferCodec:
    kind = getattr(wherry, datatype)[shape]

    def echo(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x

    echo.__annotations__ = dict.fromkeys(("x", "return"), Annotated[np.ndarray, kind])
    return codec_of(wherry.model(name="echo", max_batch_size=4)(echo), **options)


PAIR = codec_of(pair)


def over_the_wire(codec: InferCodec, request: Values, **how: Any) -> DecodedRequest:
    """As it comes in a call: through bytes."""
    return codec.decode(REQUEST.decode(REQUEST.encode(request)), **how)


def answer_of(
    codec: InferCodec, response: InferResponse, id: str = "", requested: Any = None, **how: Any
) -> Values:
    """As the client reads it, whichever way it is written."""
    whole = b"".join(codec.encode(response, id, requested, **how))
    if not how:
        usual = codec.encode_usual(response, id, requested)
        assert usual is None or b"".join(usual) == whole
    return RESPONSE.decode(whole)


def x(rows: int = 1, **more: Any) -> Values:
    return {"name": "x", "datatype": "FP32", "shape": [rows, 3], **more}


def name(rows: int = 1, **more: Any) -> Values:
    return {"name": "name", "datatype": "BYTES", "shape": [rows], **more}


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


GOOD: Values = {
    "model_name": "pair",
    "inputs": [x(), name()],
    "raw_input_contents": [floats(1, 2, 3), pack_bytes([b"n"])],
}


def test_raw_contents_become_columns_in_the_models_order() -> None:
    decoded = over_the_wire(
        PAIR,
        {
            "id": "7",
            "inputs": [name(2), x(2)],
            "raw_input_contents": [pack_bytes([b"a", b"\xc3\xa9"]), floats(1, 2, 3, 4, 5, 6)],
        },
    )
    assert list(decoded.columns) == ["x", "name"]
    assert np.asarray(decoded.columns["x"]).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert decoded.columns["name"] == ["a", "é"]
    assert (decoded.rows, decoded.id, decoded.requested_outputs) == (2, "7", None)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("datatype", NUMBERS)
def test_typed_contents_of_every_datatype_become_the_same_column_as_raw_ones(
    datatype: str, rows: int
) -> None:
    values = NUMBERS[datatype] * rows
    codec = echo_of(datatype)
    given = {"name": "x", "datatype": datatype, "shape": [rows, 3]}
    typed = over_the_wire(
        codec, {"inputs": [{**given, "contents": {CONTENTS_FIELD[datatype]: values}}]}
    ).columns["x"]
    raw = np.array(values, codec.tensors.inputs["x"].spec.datatype.dtype).tobytes()
    other = over_the_wire(codec, {"inputs": [given], "raw_input_contents": [raw]}).columns["x"]
    assert isinstance(typed, np.ndarray)
    assert isinstance(other, np.ndarray)
    assert typed.dtype == other.dtype
    assert typed.tolist() == other.tolist()
    assert typed.ravel().tolist() == np.array(values, typed.dtype).tolist()


def test_long_typed_contents_are_read_as_arrays() -> None:
    codec = echo_of("INT16", -1)
    values = list(range(-500, 500))
    given = {"name": "x", "datatype": "INT16", "shape": [1, 1000]}
    decoded = over_the_wire(codec, {"inputs": [{**given, "contents": {"int_contents": values}}]})
    assert np.asarray(decoded.columns["x"]).tolist() == [values]
    values[500] = 2**15
    with pytest.raises(InvalidRequest, match="out of the range of INT16"):
        over_the_wire(codec, {"inputs": [{**given, "contents": {"int_contents": values}}]})


def test_a_large_tensor_is_a_view_of_the_message() -> None:
    data = REQUEST.encode(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1000]}],
            "raw_input_contents": [bytes(4000)],
        }
    )
    codec = echo_of("FP32", -1)
    view = codec.decode(REQUEST.decode(data)).columns["x"]
    assert isinstance(view, np.ndarray)
    assert np.shares_memory(view, np.frombuffer(data, np.uint8))
    assert not view.flags.writeable
    own = echo_of("FP32", -1, views=False)
    column = own.decode(REQUEST.decode(data)).columns["x"]
    assert isinstance(column, np.ndarray)
    assert column.flags.writeable


def test_rows_that_are_arrays_each_may_be_written_to() -> None:
    @wherry.model(max_batch_size=4)
    def ragged(
        x: Annotated[list[np.ndarray], wherry.FP32[-1]],
    ) -> Annotated[list[np.ndarray], wherry.FP32[-1]]:
        return x

    given = {"name": "x", "datatype": "FP32", "shape": [2, 100]}
    decoded = over_the_wire(
        codec_of(ragged), {"inputs": [given], "raw_input_contents": [bytes(800)]}
    )
    assert [row.flags.writeable for row in decoded.columns["x"]] == [True, True]


def test_an_empty_tensor_is_one() -> None:
    codec = echo_of("FP32", -1)
    given = {"name": "x", "datatype": "FP32", "shape": [1, 0]}
    for request in ({"inputs": [given]}, {"inputs": [given], "raw_input_contents": [b""]}):
        column = over_the_wire(codec, request).columns["x"]
        assert isinstance(column, np.ndarray)
        assert column.shape == (1, 0)


RAW_X, RAW_NAME = GOOD["raw_input_contents"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"inputs": [], "raw_input_contents": []},
            "expected number of inputs between 2 and 3 but got 0 inputs",
        ),
        ({"inputs": [x()]}, r"missing required input\(s\) \['name'\]"),
        ({"inputs": [x(), name(), x()]}, "input 'x' already exists in request"),
        ({"inputs": [{"name": "y"}]}, "unexpected inference input 'y' for model 'pair'"),
        ({"inputs": [{}]}, "unexpected inference input ''"),
        ({"inputs": [x(datatype="FP64")]}, "data-type is 'FP64', but model 'pair' expects 'FP32'"),
        ({"inputs": [x(datatype="FLOAT")]}, "data-type is 'FLOAT'"),
        ({"inputs": [x(datatype="")]}, "data-type is ''"),
        ({"inputs": [x(), name(2)]}, "batch size does not match other inputs"),
        ({"inputs": [x(shape=[])]}, r"unexpected shape for input 'x'.*Expected \[-1,3\], got \[\]"),
        ({"inputs": [x(shape=[3])]}, "unexpected shape for input 'x'"),
        ({"inputs": [x(shape=[1, 2])]}, r"got \[1,2\]"),
        ({"inputs": [x(shape=[-1, 3])]}, "unexpected shape for input 'x'"),
        ({"inputs": [x(shape=[1, -3])]}, "unexpected shape for input 'x'"),
        ({"inputs": [x(shape=[0, 3])]}, "0 rows"),
        ({"inputs": [x(shape=[1] * 100)]}, "unexpected shape for input 'x'"),
        ({"inputs": [x(shape=[2**62, 3])]}, "input 'x' has 4611686018427387904 rows"),
        ({"raw_input_contents": [RAW_X]}, "raw_input_contents has only 1 entries"),
        ({"raw_input_contents": [RAW_X, RAW_NAME, b""]}, "1 of 3 raw_input_contents belong to no"),
        ({"raw_input_contents": [RAW_X[:-1], RAW_NAME]}, "Expected 12, got 11"),
        ({"raw_input_contents": [RAW_X + b"x", RAW_NAME]}, "Expected 12, got 13"),
        (
            {"raw_input_contents": [RAW_X, b"\x09\0\0\0n"]},
            "expecting string of length 9 but only 1 bytes",
        ),
        (
            {"raw_input_contents": [RAW_X, b"\x01"]},
            "incomplete string length indicator for inference input 'name'",
        ),
        ({"raw_input_contents": [RAW_X, RAW_NAME * 2]}, "unexpected number of string elements 2"),
        ({"raw_input_contents": [RAW_X, pack_bytes([b"\xff"])]}, "not UTF-8"),
        (
            {"inputs": [x(contents={"fp32_contents": [1, 2, 3]}), name()]},
            "contents field must not be specified when using raw_input_contents for 'x'",
        ),
        (
            {"parameters": {"triton_x": {"bool_param": True}}},
            "reserved for Triton usage.*'triton_x'",
        ),
        ({"parameters": {"p": {}}}, "parameter 'p' has invalid type"),
        ({"parameters": {"priority": {"string_param": "high"}}}, "'priority' must be"),
        ({"parameters": {"priority": {"int64_param": -1}}}, "'priority' must be"),
        ({"outputs": [{"name": "nope"}]}, "unexpected inference output 'nope' for model 'pair'"),
        (
            {"outputs": [{"name": "name", "parameters": {"classification": {"int64_param": 2}}}]},
            "class result not available for output due to unsupported type 'BYTES'",
        ),
        (
            {"outputs": [{"name": "total", "parameters": {"classification": {"int64_param": -1}}}]},
            "'classification' parameter, expected int64_param: a whole number",
        ),
        (
            {"outputs": [{"name": "total", "parameters": {"classification": {"bool_param": 1}}}]},
            "'classification' parameter, expected int64_param: a whole number",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_named(change: Values, problem: str) -> None:
    assert over_the_wire(PAIR, GOOD).rows == 1
    with pytest.raises(InvalidRequest, match=problem):
        over_the_wire(PAIR, {**GOOD, **change})


@pytest.mark.parametrize(
    ("datatype", "contents", "problem"),
    [
        ("FP32", {}, "unable to find data for input tensor 'x' for model"),
        ("FP32", {"fp32_contents": [1, 2]}, "Expected 12, got 8"),
        ("FP32", {"fp64_contents": [1, 2, 3]}, "of type 'FP64', expected datatype 'FP32': it"),
        ("FP32", {"fp32_contents": [1] * 3, "int_contents": [1]}, "not int_contents"),
        (
            "INT8",
            {"int_contents": [1, 2, 128]},
            "contents.int_contents is out of the range of INT8",
        ),
        ("INT16", {"int_contents": [1, 2, -(2**15) - 1]}, "out of the range of INT16"),
        ("UINT8", {"uint_contents": [1, 2, 256]}, "out of the range of UINT8"),
        ("UINT16", {"int_contents": [1, 2, 3]}, "it belongs in contents.uint_contents"),
        ("FP16", {"fp32_contents": [1, 2, 3]}, "FP16 has no field in contents"),
        ("BF16", {}, "BF16 has no field in contents; use raw_input_contents"),
    ],
)
def test_what_is_wrong_with_typed_contents_is_named(
    datatype: str, contents: Values, problem: str
) -> None:
    given = {"name": "x", "datatype": datatype, "shape": [1, 3], "contents": contents}
    with pytest.raises(InvalidRequest, match=problem):
        over_the_wire(echo_of(datatype), {"inputs": [given]})


def test_texts_may_come_as_typed_contents() -> None:
    decoded = over_the_wire(
        PAIR,
        {
            "inputs": [
                x(2, contents={"fp32_contents": range(6)}),
                name(2, contents={"bytes_contents": [b"a", b"x" * 100]}),
            ]
        },
    )
    assert decoded.columns["name"] == ["a", "x" * 100]


def test_parameters_are_plain_values() -> None:
    given = {
        "b": {"bool_param": False},
        "i": {"int64_param": -5},
        "u": {"uint64_param": 2**64 - 1},
        "d": {"double_param": 0.5},
        "s": {"string_param": ""},
    }
    decoded = over_the_wire(PAIR, {**GOOD, "parameters": given})
    assert decoded.parameters == {"b": False, "i": -5, "u": 2**64 - 1, "d": 0.5, "s": ""}


@pytest.mark.parametrize("wish", [True, False])
def test_the_wish_for_an_empty_end_is_for_streams_and_not_for_the_model(wish: bool) -> None:
    parameters = {"triton_enable_empty_final_response": {"bool_param": wish}}
    decoded = over_the_wire(PAIR, {**GOOD, "parameters": parameters})
    assert decoded.empty_final_response is wish
    assert decoded.parameters == {}
    assert not over_the_wire(PAIR, GOOD).empty_final_response


@pytest.mark.parametrize("value", [{"int64_param": 1}, {"string_param": "true"}, {}])
def test_the_wish_for_an_empty_end_is_a_bool(value: Values) -> None:
    parameters = {"triton_enable_empty_final_response": value}
    with pytest.raises(InvalidRequest, match="expected bool_param"):
        over_the_wire(PAIR, {**GOOD, "parameters": parameters})


@pytest.mark.parametrize(("name", "meant"), [("sequence_id", 2**64 - 1), ("timeout", -1)])
def test_only_a_sequence_id_of_64_bits_may_come_as_a_negative_number(name: str, meant: int) -> None:
    decoded = over_the_wire(PAIR, {**GOOD, "parameters": {name: {"int64_param": -1}}})
    assert decoded.parameters == {name: meant}


def test_damaged_requests_are_told_apart_from_wrong_ones() -> None:
    with pytest.raises(Malformed, match="failed to parse the request message"):
        PAIR.decode(REQUEST.decode(REQUEST.encode(GOOD)[:-1]))


# Answers

ANSWER = InferResponse({"total": np.ones((2, 3), np.float32), "name": ["a", "b"]}, 2)


def test_outputs_are_raw_whatever_the_request_was() -> None:
    encoded = answer_of(PAIR, ANSWER, "7")
    assert encoded == {
        "model_name": "pair",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "total", "datatype": "FP32", "shape": [2, 3]},
            {"name": "name", "datatype": "BYTES", "shape": [2]},
        ],
        "raw_output_contents": [floats(*[1] * 6), pack_bytes([b"a", b"b"])],
    }


@pytest.mark.parametrize(
    ("total", "names", "is_usual"),
    [
        (np.ones((1, 3), np.float32), ["a"], True),
        (np.ones((2, 3), np.float32)[:, ::-1], ["a", "\u00e4\u6f22"], True),
        (np.ones((1, 3), np.float32), [b"a"], False),
        (np.ones((1, 3), np.float32), [None], False),
        (np.ones((1, 3), np.float32), ["a" * LARGE_BYTES, "b"], False),
        (np.ones((LARGE_ELEMENTS, 3), np.float32), ["a"], False),
    ],
)
def test_a_usual_answer_is_written_at_once_as_any_other_is(
    total: Array, names: list[Any], is_usual: bool
) -> None:
    response = InferResponse({"total": total, "name": names})
    usual = PAIR.encode_usual(response, "7", None)
    assert (usual is not None) is is_usual
    if usual is not None:
        assert b"".join(usual) == b"".join(PAIR.encode(response, "7"))
    assert PAIR.encode_usual(InferResponse({"name": ["a"]}), "", None) is None
    assert PAIR.encode_usual(replace(response, parameters={"a": 1}), "", None) is None


def test_outputs_come_in_the_models_order_and_only_those_that_are_wanted() -> None:
    both = [{"name": "name"}, {"name": "total"}, {"name": "name"}]
    wanted = over_the_wire(PAIR, {**GOOD, "outputs": both}).requested_outputs
    assert wanted is not None
    assert [o["name"] for o in answer_of(PAIR, ANSWER, requested=wanted)["outputs"]] == [
        "total",
        "name",
    ]
    decoded = over_the_wire(PAIR, {**GOOD, "outputs": both[:1]})
    assert decoded.output_names == ["name"]
    assert (
        len(answer_of(PAIR, ANSWER, requested=decoded.requested_outputs)["raw_output_contents"])
        == 1
    )


def test_an_answer_may_lack_outputs() -> None:
    """A stream has nothing for some of them at times; a Triton model may leave some out."""
    encoded = answer_of(PAIR, InferResponse({"total": [None], "name": ["a"]}))
    assert [output["name"] for output in encoded["outputs"]] == ["name"]
    assert "outputs" not in answer_of(PAIR, InferResponse({}))
    with pytest.raises(InvalidRequest, match="answered only some rows of this request"):
        PAIR.encode(InferResponse({"name": ["a", None]}, 2))


def test_scores_become_classes_with_their_labels() -> None:
    codec = codec_of(pair, labels={"total": ["cat", "dog"]})
    parameters = {"classification": {"int64_param": 2}}
    asked = {**GOOD, "outputs": [{"name": "total", "parameters": parameters}]}
    scores = np.array([[0.5, 2, 1]], np.float32)
    encoded = answer_of(
        codec,
        InferResponse({"total": scores}),
        requested=over_the_wire(codec, asked).requested_outputs,
    )
    assert encoded["outputs"] == [{"name": "total", "datatype": "BYTES", "shape": [1, 2]}]
    assert encoded["raw_output_contents"] == [pack_bytes([b"2.000000:1:dog", b"1.000000:2"])]


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (True, {"bool_param": True}),
        (np.bool_(False), {"bool_param": False}),
        (-1, {"int64_param": -1}),
        (np.int8(3), {"int64_param": 3}),
        (2**63, {"uint64_param": 2**63}),
        (0.5, {"double_param": 0.5}),
        ("", {"string_param": ""}),
    ],
)
def test_what_a_model_says_beside_its_outputs_is_sent(value: Any, wire: Values) -> None:
    answer = InferResponse({}, parameters={"p": value})
    assert answer_of(PAIR, answer)["parameters"] == {"p": wire}
    final = answer_of(PAIR, answer, final=True)["parameters"]
    assert final == {"p": wire, "triton_final_response": {"bool_param": True}}


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, b"x", 2**64, -(2**63) - 1])
def test_a_parameter_that_cannot_be_sent_is_the_models_error(value: Any) -> None:
    with pytest.raises(BadModelOutput):
        PAIR.encode(InferResponse({}, parameters={"p": value}))


# Shared memory


def region(name: str, size: int, offset: int | None = None) -> Values:
    parameters: Values = {
        "shared_memory_region": {"string_param": name},
        "shared_memory_byte_size": {"int64_param": size},
    }
    if offset is not None:
        parameters["shared_memory_offset"] = {"int64_param": offset}
    return {"parameters": parameters}


def test_inputs_and_outputs_may_lie_in_shared_memory() -> None:
    theirs = Path(f"/dev/shm/wherry-test-{os.getpid()}-grpc")
    theirs.write_bytes(bytes(100) + floats(7, 8, 9) + bytes(888))
    try:
        regions = SharedMemory(allowed=True)
        regions.register("r", theirs.name, 1000)
        codec = codec_of(pair, shared_memory=regions)
        asked = {
            "inputs": [x(**region("r", 12, 100)), name()],
            "raw_input_contents": [RAW_NAME],  # the first input has no entry
            "outputs": [{"name": "total", **region("r", 64)}, {"name": "name"}],
        }
        decoded = over_the_wire(codec, asked)
        assert np.asarray(decoded.columns["x"]).tolist() == [[7, 8, 9]]
        assert decoded.columns["name"] == ["n"]
        encoded = answer_of(codec, ANSWER, requested=decoded.requested_outputs)
        assert encoded["raw_output_contents"] == [b"", pack_bytes([b"a", b"b"])]
        assert theirs.read_bytes()[:24] == floats(*[1] * 6)
        for wrong in (region("r", 8, 100), region("r", 12, 990), region("r", -1)):
            with pytest.raises(InvalidRequest):
                over_the_wire(codec, {**asked, "inputs": [x(**wrong), name()]})
        with pytest.raises(RegionNotFound, match="input 'x': Unable to find"):
            over_the_wire(codec, {**asked, "inputs": [x(**region("s", 12)), name()]})
        both = x(**region("r", 12, 100), contents={"fp32_contents": [1, 2, 3]})
        with pytest.raises(InvalidRequest, match="both contents and a shared memory region"):
            over_the_wire(codec, {"inputs": [both, name()]})
        del decoded, encoded
        regions.unregister()
    finally:
        theirs.unlink()


def test_shared_memory_is_off_unless_it_is_allowed() -> None:
    with pytest.raises(Unsupported, match="--allow-client-shm"):
        over_the_wire(PAIR, {"inputs": [x(**region("r", 12)), name()]})


@pytest.mark.parametrize(
    "parameters",
    [
        {"shared_memory_region": {"int64_param": 1}},
        {"shared_memory_region": {"string_param": "r"}},
        {
            "shared_memory_region": {"string_param": "r"},
            "shared_memory_byte_size": {"string_param": "12"},
        },
    ],
)
def test_parameters_of_shared_memory_have_their_types(parameters: Values) -> None:
    with pytest.raises(InvalidRequest, match="input 'x': parameter"):
        over_the_wire(PAIR, {"inputs": [x(parameters=parameters), name()]})
