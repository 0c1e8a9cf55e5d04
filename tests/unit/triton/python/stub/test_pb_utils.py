"""What does a model see of Triton's module, also where there is no server?"""

import json
import re
import sys
from typing import Any

import numpy as np
import pytest

from wherry.triton.python import pb_utils
from wherry.triton.python.stub.pb_utils import (
    InferenceRequest,
    InferenceResponse,
    ModelConfig,
    Tensor,
    TritonError,
    TritonModelException,
)


@pytest.mark.parametrize("name", sorted(set(pb_utils._NUMPY) - {"BYTES"}))
def test_a_tensor_of_each_datatype_keeps_its_array(name: str) -> None:
    array = np.zeros((2, 3), pb_utils._NUMPY[name])
    tensor = Tensor("x", array)

    assert tensor.as_numpy() is array
    assert tensor.shape() == [2, 3]
    assert pb_utils.triton_to_numpy_type(tensor.triton_dtype()) == array.dtype
    assert pb_utils.numpy_to_triton_type(array.dtype.type) == tensor.triton_dtype()
    assert tensor.is_cpu()


@pytest.mark.parametrize(
    "array",
    [
        np.array([b"a", b""], dtype=np.object_),
        np.array(["a", ""], dtype=np.object_),
        np.array([b"a", b""]),
    ],
)
def test_strings_of_all_kinds_become_bytes(array: Any) -> None:
    _, datatype, shape, data = Tensor("x", array)._wire()

    assert (datatype, shape) == ("BYTES", [2])
    assert data == b"\x01\0\0\0a\0\0\0\0"
    back = Tensor._of_memory("x", datatype, shape, data).as_numpy()
    assert back.dtype == np.object_
    assert back.tolist() == [b"a", b""]


def test_what_has_no_datatype_is_refused_with_its_remedy() -> None:
    with pytest.raises(TritonModelException, match="use dtype=object"):
        Tensor("x", np.array(["text"]))
    with pytest.raises(TritonModelException, match="no datatype"):
        Tensor("x", np.zeros(2, np.complex64))
    with pytest.raises(TypeError, match="fill it"):
        Tensor("x", np.ma.masked_array(np.ones(2, np.float32), [False, True]))


def test_an_array_of_another_byte_order_is_turned() -> None:
    tensor = Tensor("x", np.array([1, 2], ">i4"))

    assert tensor._wire()[3].tobytes() == np.array([1, 2], "<i4").tobytes()


def test_strided_arrays_are_sent_as_they_look() -> None:
    x = np.arange(12).reshape(3, 4)
    for array in (x.T, x[:, ::2], x[::-1]):
        _, _, shape, data = Tensor("x", array)._wire()
        back = np.frombuffer(data.tobytes(), array.dtype).reshape(shape)
        np.testing.assert_array_equal(back, array)


# DLPack


def test_numpy_takes_a_tensor_by_dlpack_without_a_copy() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    taken = np.from_dlpack(Tensor("x", x))

    np.testing.assert_array_equal(taken, x)
    x[0, 0] = 7
    assert taken[0, 0] == 7


def test_a_tensor_of_numpy_memory_by_dlpack_is_no_copy() -> None:
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    tensor = Tensor.from_dlpack("x", x)

    assert (tensor.name(), tensor.shape()) == ("x", [2, 3])
    x[1, 2] = 50
    assert tensor.as_numpy()[1, 2] == 50


def test_a_capsule_is_used_once_and_may_be_dropped_unused() -> None:
    tensor = Tensor("x", np.arange(4.0))
    held = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == held + 1
    del capsule
    assert sys.getrefcount(tensor) == held

    capsule = tensor.to_dlpack()
    taken = Tensor.from_dlpack("y", capsule)
    with pytest.raises(TritonModelException, match="unused"):
        Tensor.from_dlpack("z", capsule)
    np.testing.assert_array_equal(taken.as_numpy(), np.arange(4.0))
    del taken, capsule
    assert sys.getrefcount(tensor) == held


@pytest.mark.slow
def test_an_error_over_a_borrowed_tensor_stays_what_it_is() -> None:
    torch = pytest.importorskip("torch")
    tensor = Tensor("x", np.arange(4.0))
    held = sys.getrefcount(tensor)

    with pytest.raises(RuntimeError, match="shape"):
        torch.utils.dlpack.from_dlpack(tensor.to_dlpack()).view(3)  # freed while it is raised
    assert sys.getrefcount(tensor) == held


def test_memory_lives_as_long_as_the_tensor_that_took_it() -> None:
    taken = Tensor.from_dlpack("x", Tensor("y", np.full(1000, 7.0)).to_dlpack())

    assert (taken.as_numpy() == 7.0).all()


def test_strided_memory_comes_as_it_looks() -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4).T

    np.testing.assert_array_equal(Tensor.from_dlpack("x", x).as_numpy(), x)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_scalars_and_empty_tensors_survive_dlpack(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float16)
    tensor = Tensor.from_dlpack("x", Tensor("y", x).to_dlpack())

    assert tensor.shape() == list(shape)
    np.testing.assert_array_equal(tensor.as_numpy(), x)


def test_strings_have_no_dlpack() -> None:
    with pytest.raises(TritonModelException, match="not have support for string"):
        Tensor("x", np.array([b"a"], dtype=np.object_)).to_dlpack()
    with pytest.raises(TritonModelException, match="capsule"):
        Tensor.from_dlpack("x", "no tensor")


def test_bf16_is_for_dlpack_only() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16).view(np.uint8)
    tensor = Tensor._of_memory("x", "BF16", [2], bits)

    assert tensor.triton_dtype() == 14
    with pytest.raises(TritonModelException, match="use DLPack"):
        tensor.as_numpy()
    again = Tensor.from_dlpack("y", tensor)
    assert again._wire()[1] == "BF16"
    assert again._wire()[3].tobytes() == bits.tobytes()


# Requests and responses


def test_a_request_of_ones_own_has_what_it_was_given() -> None:
    x = Tensor("X", np.zeros(1))
    request = InferenceRequest(
        model_name="other",
        requested_output_names=["Y"],
        inputs=[x],
        request_id="r",
        correlation_id=7,
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        timeout=1000,
        parameters={"a": 1},
    )

    assert pb_utils.get_input_tensor_by_name(request, "X") is x
    assert pb_utils.get_input_tensor_by_name(request, "Z") is None
    assert (request.request_id(), request.correlation_id(), request.flags()) == ("r", 7, 1)
    assert (request.timeout(), json.loads(request.parameters())) == (1000, {"a": 1})
    assert request.requested_output_names() == {"Y"}
    assert not request.is_cancelled()
    assert not hasattr(request, "model_name")


def test_what_needs_a_server_says_so() -> None:
    request = InferenceRequest(model_name="other", requested_output_names=[], inputs=[])

    with pytest.raises(TritonModelException, match=r"exec\(\) needs a server"):
        request.exec()
    with pytest.raises(TritonModelException, match="is_model_ready"):
        pb_utils.is_model_ready("other")
    with pytest.raises(TritonModelException, match="get_response_sender"):
        request.get_response_sender()


def test_a_response_has_outputs_or_an_error() -> None:
    y = Tensor("Y", np.zeros(1))
    good = InferenceResponse(output_tensors=[y], parameters={"ok": True})
    bad = InferenceResponse(error=TritonError("no", TritonError.NOT_FOUND))

    assert pb_utils.get_output_tensor_by_name(good, "Y") is y
    assert not good.has_error()
    assert json.loads(good.parameters()) == {"ok": True}
    assert bad.has_error()
    assert (bad.error().message(), bad.error().code()) == ("no", 2)
    assert TritonError("plain").code() == TritonError.INTERNAL


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"a": []}, "values to have type bool/int/str, found type <class 'list'>"),
        ({1: "a"}, "keys to have type str, found type <class 'int'>"),
        ({"a": 0.5}, "values to have type bool/int/str, found type <class 'float'>"),
        ({"a": None}, "values to have type bool/int/str, found type <class 'NoneType'>"),
        ([], "must be a dict, got <class 'list'>"),
        ("{}", "must be a dict, got <class 'str'>"),
    ],
)
def test_parameters_are_plain_values(parameters: Any, text: str) -> None:
    with pytest.raises(TritonModelException, match=text):
        InferenceResponse([], parameters=parameters)


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": None}, {"requested_output_names": None}, {"requested_output_names": [None]},
        {"requested_output_names": "Y"}, {"model_name": None}, {"request_id": None},
        {"correlation_id": None}, {"model_version": "1"}, {"flags": None}, {"timeout": 1.5},
    ],
)  # fmt: skip
def test_arguments_of_another_type_are_type_errors_as_in_triton(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"inputs": [], "requested_output_names": [], "model_name": "m"}
    InferenceRequest(**right)

    (name,) = wrong
    with pytest.raises(TypeError, match=f"InferenceRequest: {name} must be a"):
        InferenceRequest(**{**right, **wrong})


def test_bytes_are_text_as_an_element_of_a_string_tensor_is() -> None:
    name = np.array(["caf\u00e9".encode()], np.object_)[0]
    request = InferenceRequest(name, 0, [Tensor(name, np.zeros(1))], [name, "Y"], name)

    assert request._model == request.request_id() == request.inputs()[0].name() == "caf\u00e9"
    assert request.requested_output_names() == {"caf\u00e9", "Y"}


def test_the_trace_of_a_request_is_that_of_another_one() -> None:
    first = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    assert first.trace().get_context() is None
    traced = pb_utils.InferenceRequest(
        inputs=[], requested_output_names=[], model_name="m", trace=first.trace()
    )
    assert traced.trace() is first.trace()
    with pytest.raises(TypeError, match=r"trace is what request\.trace\(\) gives, not 'x'"):
        pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m", trace="x")


@pytest.mark.parametrize("missing", ["inputs", "requested_output_names", "model_name"])
def test_a_request_needs_inputs_names_of_outputs_and_a_model(missing: str) -> None:
    given: dict[str, Any] = {"inputs": [], "requested_output_names": [], "model_name": "m"}
    del given[missing]
    with pytest.raises(TypeError, match=missing):
        InferenceRequest(**given)


def test_what_is_no_tensor_is_told_apart_from_what_is_no_list() -> None:
    def request(inputs: Any) -> InferenceRequest:
        return InferenceRequest(inputs=inputs, requested_output_names=[], model_name="m")

    for make in (request, InferenceResponse):
        with pytest.raises(TritonModelException, match="holds a NoneType"):
            make([None])
        with pytest.raises(TypeError, match="must be a list"):
            make(None)


def test_a_tensor_has_a_name_and_an_array() -> None:
    for name, array in ((None, np.zeros(1)), ("x", None), ("", None), ("x", [1])):
        with pytest.raises(TypeError):
            Tensor(name, array)  # type: ignore[arg-type]
    with pytest.raises(TritonModelException, match="cannot be an empty string"):
        Tensor("", np.zeros(1))
    with pytest.raises(TritonModelException, match="cannot be an empty string"):
        Tensor.from_dlpack("", np.zeros(1))


def test_byte_tensors_are_serialized_as_on_the_wire() -> None:
    array = np.array([[b"a", "\u00e4"]], dtype=np.object_)
    data = pb_utils.serialize_byte_tensor(array)

    assert pb_utils.deserialize_bytes_tensor(data).tolist() == [b"a", "\u00e4".encode()]
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None
    with pytest.raises(ValueError, match="ends within"):
        pb_utils.deserialize_bytes_tensor(data[:-1])


# Configurations


def config(**members: Any) -> ModelConfig:
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, **members}))


def test_a_configuration_is_completed_where_it_is_silent() -> None:
    it = config(input=[{"name": "X", "data_type": "TYPE_INVALID", "dims": []}])
    it.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
    it.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": (1,)})
    it.set_max_batch_size(8)
    it.set_dynamic_batching()
    it.set_model_transaction_policy({"decoupled": True})

    found = it.as_dict()
    assert found["input"] == [
        {"name": "X", "data_type": "TYPE_FP32", "dims": [4], "optional": True}
    ]
    assert found["output"] == [{"name": "Y", "data_type": "TYPE_STRING", "dims": [1]}]
    assert found["max_batch_size"] == 8
    assert found["dynamic_batching"] == {}
    assert pb_utils.using_decoupled_model_transaction_policy(found)
    assert pb_utils.get_input_config_by_name(found, "X")["dims"] == [4]
    assert pb_utils.get_output_config_by_name(found, "Z") is None


def test_what_a_configuration_says_already_must_hold() -> None:
    it = config(
        input=[{"name": "X", "data_type": "TYPE_FP32", "dims": ["4"]}],
        model_transaction_policy={"decoupled": True},
    )

    it.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4]})
    with pytest.raises(ValueError, match="already set to 'True'"):
        it.set_model_transaction_policy({"decoupled": False})
    it.set_model_transaction_policy({})
    assert pb_utils.using_decoupled_model_transaction_policy(it.as_dict())


FP32 = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}
BY_CODE = "in auto-complete-config function for model 'm'"


@pytest.mark.parametrize(
    ("given", "call", "message"),
    [
        (
            {"input": [FP32]},
            ("add_input", {**FP32, "data_type": "TYPE_FP64"}),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'X',"
            " model provides TYPE_FP64",
        ),
        (
            {"output": [FP32]},
            ("add_output", {**FP32, "dims": (5,)}),
            "model 'm', tensor 'X': the model expects dims [5] but the model configuration"
            " specifies dims [4]",
        ),
        (
            {"input": [{**FP32, "optional": True}]},
            ("add_input", {**FP32, "optional": False}),
            "model 'm', tensor 'X': the model expects optional False but the model configuration"
            " specifies optional True",
        ),
        ({}, ("add_input", {"dims": [1]}), f"input {BY_CODE} is missing 'name' property."),
        (
            {},
            ("add_output", {"name": "Y", "dims": [1]}),
            f"output 'Y' {BY_CODE} is missing 'data_type' property.",
        ),
        (
            {},
            ("add_output", {"name": "Y", "data_type": "TYPE_FP32"}),
            f"output 'Y' {BY_CODE} is missing 'dims' property.",
        ),
        (
            {},
            ("add_input", {**FP32, "shape": [4]}),
            f"input 'X' {BY_CODE} contains property other than 'name', 'data_type', 'dims' and"
            " 'optional'. It has 'shape'.",
        ),
        (
            {},
            ("add_output", {**FP32, "optional": True}),
            f"output 'X' {BY_CODE} contains property other than 'name', 'data_type' and 'dims'."
            " It has 'optional'.",
        ),
        (
            {"max_batch_size": 6},
            ("set_max_batch_size", 4),
            f"configuration specified max_batch_size 6, but {BY_CODE} specified max_batch_size 4",
        ),
        (
            {"sequence_batching": {}},
            ("set_dynamic_batching",),
            f"Configuration specified scheduling_choice as 'sequence_batching', but"
            f" {BY_CODE[3:]} tries to set scheduling_choice as 'dynamic_batching'",
        ),
        (
            {},
            ("set_model_transaction_policy", {"decoupled": True, "x": 1}),
            f"model transaction property {BY_CODE} contains property other than 'decoupled'. It"
            " has 'x'.",
        ),
        (
            {"model_transaction_policy": {"decoupled": False}},
            ("set_model_transaction_policy", {"decoupled": True}),
            "trying to change decoupled property in auto-complete-config for model 'm', which is"
            " already set to 'False'.",
        ),
    ],
)
def test_what_contradicts_the_configuration_is_refused_in_tritons_words(
    given: dict[str, Any], call: tuple[Any, ...], message: str
) -> None:
    it = config(**given)
    before = it.as_dict().copy()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(it, call[0])(*call[1:])
    assert it.as_dict() == before


# Log and metrics


def test_without_a_server_the_log_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    pb_utils.Logger.log_info("one")
    pb_utils.Logger.log("two", pb_utils.Logger.ERROR)

    assert capsys.readouterr().err == "one\ntwo\n"


def test_the_log_takes_text_and_its_own_levels() -> None:
    logger: Any = pb_utils.Logger
    for log, *arguments in (
        (logger.log_info, None),
        (logger.log_verbose, 5),
        (logger.log, "x", None),
        (logger.log, "x", 1),
    ):
        with pytest.raises(TypeError):
            log(*arguments)


def test_metrics_are_used_as_their_kind_allows() -> None:
    family = pb_utils.MetricFamily
    families = [family(kind, "d", number) for number, kind in enumerate("cgh")]
    counter = families[0].Metric(labels={"a": "b"})
    gauge = families[1].Metric()
    histogram = families[2].Metric(buckets=[1, 2])

    counter.increment(2)
    gauge.set(-1)
    histogram.observe(1.5)
    for wrong in (
        lambda: counter.increment(-1),
        lambda: counter.set(1),
        lambda: gauge.observe(1),
        lambda: histogram.increment(1),
        lambda: histogram.value(),
        lambda: family("no name", "d", family.GAUGE),
        lambda: family("x", "d", 7),
        lambda: family("x", "d", family.GAUGE).Metric(labels={"no-label": "x"}),
        lambda: family("x", "d", family.GAUGE).Metric(buckets=[1]),
        lambda: family("x", "d", family.HISTOGRAM).Metric(),
        lambda: family("x", "d", family.HISTOGRAM).Metric(buckets=[2, 1]),
        lambda: family("x", "d", family.HISTOGRAM).Metric(buckets=[1, 1]),
    ):
        with pytest.raises(TritonModelException):
            wrong()


@pytest.mark.parametrize(("kind", "uses"), [(0, "increment value"), (1, "set increment value")])
def test_a_metric_whose_family_is_deleted_says_so(kind: int, uses: str) -> None:
    metric = pb_utils.MetricFamily("short_lived", "d", kind).Metric()

    for use in uses.split():
        arguments = () if use == "value" else (1,)
        with pytest.raises(TritonModelException, match="'MetricFamily' has been deleted"):
            getattr(metric, use)(*arguments)
