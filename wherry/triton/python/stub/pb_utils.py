"""What does `import triton_python_backend_utils as pb_utils` provide to a model?

The interface of Triton's module of that name. In a worker, calls of other models, the log and
metrics go to the server. Elsewhere (in a user's own tests) requests, responses and tensors work;
what needs a server raises an error.
"""

from __future__ import annotations

import enum
import json
import operator
import re
import sys
import weakref
from typing import Any

import numpy as np

from . import dlpack, wire
from .text import clean

# Constants

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

#: The connection to the server in a worker process: a `link.Link`. None elsewhere.
_server: Any = None


class TritonModelException(Exception):
    """Raised by models, and by this module when it is used incorrectly."""


# Arguments: as in Triton's module, a value of another type is a TypeError, None included.


def _text(value: Any, what: str) -> str:
    """A text. Bytes are accepted: models pass on elements of string tensors."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    return value


def _number(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {type(value).__name__}") from None


def _items(values: Any, what: str) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{what} must be a list, not {type(values).__name__}")
    return list(values)


def _tensors(values: Any, where: str, what: str) -> list[Tensor]:
    if not isinstance(values, (list, tuple)):
        _items(values, f"{where}: {what}")
    tensors = list(values)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TritonModelException(
                f"{where}: {what} holds a {type(tensor).__name__}, not a Tensor"
            )
    return tensors


class TritonError:
    """An error of one request, with the code that its client gets."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __init__(self, message: str, code: Any = INTERNAL) -> None:
        if not isinstance(code, int) or not 0 <= code <= 7:
            raise TritonModelException(f"TritonError: {code!r} is not an error code")
        self._message = str(message)
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code})"


# Datatypes: by Triton's numbers, or by name in configurations

_NUMPY: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip
#: Triton numbers the datatypes in this order.
_NUMBERS = {name: number for number, name in enumerate([*_NUMPY, "BF16"], start=1)}
TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_" + ("STRING" if name == "BYTES" else name): kind for name, kind in _NUMPY.items()
}
TRITON_TO_NUMPY_TYPE: dict[int, Any] = {_NUMBERS[name]: kind for name, kind in _NUMPY.items()}
NUMPY_TO_TRITON_TYPE: dict[Any, int] = {kind: n for n, kind in TRITON_TO_NUMPY_TYPE.items()}
NUMPY_TO_TRITON_TYPE[np.bytes_] = _NUMBERS["BYTES"]
_DATATYPES = {np.dtype(kind): name for name, kind in _NUMPY.items()}
#: Of datatypes whose tensors are arrays as they lie in memory.
_DTYPES = {name: dtype for dtype, name in _DATATYPES.items() if name != "BYTES"}


def triton_to_numpy_type(data_type: Any) -> Any:
    """The numpy type for Triton's number (Tensor.triton_dtype()) or name ("TYPE_FP32")."""
    table: Any = TRITON_STRING_TO_NUMPY if isinstance(data_type, str) else TRITON_TO_NUMPY_TYPE
    return table[data_type]


def numpy_to_triton_type(data_type: Any) -> int:
    """Triton's number for a numpy type (np.float32) or dtype."""
    kind = np.dtype(data_type).type
    return NUMPY_TO_TRITON_TYPE[np.bool_ if kind is bool else kind]


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type for a configuration's name ("TYPE_FP32")."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """The elements of an array of objects or bytes, each with its length before it; None for other
    arrays."""
    if input_tensor.size == 0:
        return b""
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    return wire.pack_elements(_elements(input_tensor))


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """The inverse of `serialize_byte_tensor`: a flat array of bytes objects."""
    return _object_array(wire.unpack_elements(encoded_tensor))


def _elements(array: Any) -> list[bytes]:
    return [
        element if isinstance(element, bytes) else str(element).encode("utf-8")
        for element in array.ravel().tolist()
    ]


def _object_array(elements: list[bytes]) -> Any:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


# Tensors, requests, responses


class Tensor:
    """A named tensor of one request or response.

    The array of an input may be kept and written to: its memory is in use while the array exists.
    """

    def __init__(self, name: str, numpy_array: Any) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(
                f"Tensor {name!r} needs a numpy array, not a {type(numpy_array).__name__}"
            )
        if type(numpy_array) is not np.ndarray and isinstance(numpy_array, np.ma.MaskedArray):
            raise TypeError(f"Tensor {name!r} is a masked array; fill it (.filled(value))")
        self._name = name if type(name) is str and name else _tensor_name(name)
        dtype = numpy_array.dtype
        datatype = _DATATYPES.get(dtype) or ("BYTES" if dtype.kind == "S" else None)
        if datatype is None and dtype.kind == "U":
            raise TritonModelException(
                f"Tensor {name!r}: an array of str ({dtype}) has no datatype; use dtype=object"
            )
        if datatype is None:
            datatype = _DATATYPES.get(dtype.newbyteorder("="))
            if datatype is None:
                raise TritonModelException(f"Tensor {name!r}: numpy's {dtype} has no datatype")
            numpy_array = numpy_array.astype(dtype.newbyteorder("="))
        self._datatype = datatype
        self._shape = list(numpy_array.shape)
        self._array: Any = numpy_array
        self._memory: Any = None

    @classmethod
    def _of_memory(cls, name: str, datatype: str, shape: list[int], memory: Any) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._name, tensor._datatype, tensor._shape = name, datatype, shape
        tensor._array, tensor._memory = None, memory
        return tensor

    @classmethod
    def _received(cls, descriptor: list[Any], incoming: Any) -> Tensor:
        tensor = cls.__new__(cls)
        tensor._name, datatype, shape, where, offset, size = descriptor
        tensor._datatype, tensor._shape = datatype, shape
        tensor._array = tensor._memory = None
        dtype = _DTYPES.get(datatype)
        if dtype is None:
            tensor._memory = incoming.get(where, offset, size)
        else:
            tensor._array = incoming.array(where, offset, size, dtype, shape)
        return tensor

    def _wire(self) -> tuple[str, str, Any, Any]:
        """Name, datatype, shape and wire-format bytes or array."""
        name = self._name
        if not name.isascii():
            name = clean(name)
        if self._memory is not None:
            return name, self._datatype, self._shape, self._memory
        if self._datatype == "BYTES":
            return name, "BYTES", self._shape, wire.pack_elements(_elements(self._array))
        return name, self._datatype, self._shape, self._array

    def __reduce__(self) -> Any:
        """For processes that the model forks: the tensor with a copy of its memory."""
        name, datatype, shape, data = self._wire()
        if isinstance(data, np.ndarray):
            data = data.tobytes()
        memory = np.frombuffer(bytearray(data), np.uint8)
        return Tensor._of_memory, (name, datatype, list(shape), memory)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        """The array, without a copy. BYTES is an array of bytes objects. numpy has no BF16: use
        DLPack."""
        if self._array is None:
            if self._datatype == "BF16":
                raise TritonModelException(
                    f"Tensor {self._name!r}: tensor dtype is BF16 and cannot be converted to numpy:"
                    " use DLPack, for example torch.from_dlpack(tensor)"
                )
            if self._datatype == "BYTES":
                array = _object_array(wire.unpack_elements(self._memory))
                self._array = array.reshape(self._shape)
                self._memory = None
            else:
                self._array = np.ndarray(self._shape, _DTYPES[self._datatype], self._memory)
        return self._array

    def triton_dtype(self) -> int:
        return _NUMBERS[self._datatype]

    def shape(self) -> list[int]:
        return list(self._shape)

    def is_cpu(self) -> bool:
        return True

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor of a DLPack capsule or an object with `__dlpack__`. CPU memory is not copied."""
        name = _tensor_name(name)
        try:
            datatype, shape, memory = dlpack.memory_of(tensor)
        except (TypeError, BufferError, RuntimeError) as error:
            raise TritonModelException(f"Tensor {name!r}: {error}") from error
        return Tensor._of_memory(name, datatype, shape, memory)

    def to_dlpack(self) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        memory = self._memory
        if memory is None:
            self._array = memory = np.ascontiguousarray(self._array)
        return dlpack.capsule_of(memory, self._datatype, self._shape, self)

    def __dlpack__(self, *, stream: Any = None, copy: Any = None, **newer: Any) -> Any:
        """A DLPack capsule. `newer` accepts arguments of later versions of the protocol."""
        if not copy:
            return self.to_dlpack()
        _, datatype, shape, memory = self._wire()
        return Tensor._of_memory(self._name, datatype, shape, np.array(memory)).to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    def __repr__(self) -> str:
        return f"<Tensor {self._name}: {self._datatype}{self._shape}>"


def _tensor_name(name: Any) -> str:
    text = _text(name, "a Tensor's name")
    if not text:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return text


class PreferredMemory:
    def __init__(
        self, preferred_memory_type: int = TRITONSERVER_MEMORY_CPU, preferred_device_id: int = 0
    ) -> None:
        self._kind, self._device = preferred_memory_type, preferred_device_id

    def preferred_memory_type(self) -> int:
        return self._kind

    def preferred_device_id(self) -> int:
        return self._device


class InferenceTrace:
    """A request's trace, to pass to requests made for it."""

    def __init__(self, context: str = "", key: int = 0) -> None:
        """`key`: the number of the request in execute()."""
        self._context, self.key = context, key

    def get_context(self) -> Any:
        """The headers of the request's span as JSON text; None if OpenTelemetry does not trace
        it."""
        return self._context or None


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: Any = None, parameters: Any = None) -> None:
        self._outputs = _tensors(output_tensors, "InferenceResponse", "output_tensors")
        if error is not None and not isinstance(error, TritonError):
            error = TritonError(str(error))
        self._error = error
        self._parameters = "{}"
        if parameters is not None:
            self._parameters = _parameters_text(parameters, "InferenceResponse")

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Any:
        return self._error

    def parameters(self) -> str:
        """JSON text."""
        return self._parameters

    def _wire(self, out: Any) -> list[Any]:
        """The response in a message: error, parameters, outputs, whose tensors are added to
        `out`."""
        error = self._error
        if error is not None:
            return [[error.code(), clean(error.message())], self._parameters, []]
        outputs = []
        for tensor in self._outputs:
            name, datatype, array = tensor._name, tensor._datatype, tensor._array
            if tensor._memory is None and datatype != "BYTES" and name.isascii():
                outputs.append(out.put(name, datatype, tensor._shape, array))
            else:
                outputs.append(out.put(*tensor._wire()))
        return [None, self._parameters, outputs]

    def __repr__(self) -> str:
        return f"<InferenceResponse: {self._error or self._outputs}>"


class InferenceRequest:
    _id = ""
    _correlation_id: Any = 0
    _version = -1
    _flags = 0
    _timeout = 0
    _memory: Any = None
    _trace: Any = None
    _parameters = "{}"
    _release = TRITONSERVER_REQUEST_RELEASE_ALL
    #: Of a request to this model: the server's number for it, whether what execute() returned has
    #: answered it, and the state that it shares with its response senders.
    _link: Any = None
    _key = 0
    _context = ""
    _ended = False
    _exchange: Any = None

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Any = 0,
        inputs: Any = None,
        requested_output_names: Any = None,
        model_name: Any = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        trace: Any = None,
        parameters: Any = None,
    ) -> None:
        """`inputs`, `requested_output_names` (may be empty) and `model_name` are required."""
        where = "InferenceRequest"
        self._id = _text(request_id, f"{where}: request_id")
        if not isinstance(correlation_id, str):
            correlation_id = _number(correlation_id, f"{where}: correlation_id")
        self._correlation_id = correlation_id
        self._inputs = _tensors(inputs, where, "inputs")
        what = f"{where}: requested_output_names"
        self._names = [_text(name, what) for name in _items(requested_output_names, what)]
        self._model = _text(model_name, f"{where}: model_name")
        self._version = _number(model_version, f"{where}: model_version")
        self._flags = _number(flags, f"{where}: flags")
        self._timeout = _number(timeout, f"{where}: timeout")
        if trace is not None and not isinstance(trace, InferenceTrace):
            raise TypeError(f"{where}: trace is what request.trace() gives, not {trace!r}")
        self._memory, self._trace = preferred_memory, trace
        self._parameters = _parameters_text(parameters, "InferenceRequest")

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> Any:
        return self._correlation_id

    def requested_output_names(self) -> set[str]:
        return set(self._names)

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = int(flags)

    def timeout(self) -> int:
        """Microseconds; 0 means none."""
        return self._timeout

    def parameters(self) -> str:
        """JSON text."""
        return self._parameters

    def preferred_memory(self) -> PreferredMemory:
        self._memory = self._memory or PreferredMemory()  # rarely used
        found: PreferredMemory = self._memory
        return found

    def trace(self) -> InferenceTrace:
        self._trace = self._trace or InferenceTrace(self._context, self._key)
        found: InferenceTrace = self._trace
        return found

    # A request to this model

    @classmethod
    def _received(cls, link: Any, message: list[Any], incoming: Any) -> InferenceRequest:
        """A request of an execute message: its number, its tensors, and its details if it has
        any."""
        request = cls.__new__(cls)
        key, inputs, *details = message
        request._link, request._key = link, key
        request._model, request._names = link.model, link.output_names
        request._inputs = [Tensor._received(one, incoming) for one in inputs]
        if details:
            request._id, request._correlation_id, request._flags, *details = details
            request._timeout, request._parameters, names, request._context = details
            if names is not None:
                request._names = names
        if link.exchanges:
            request._exchange = link.resumed(key)
        return request

    def _begin_exchange(self) -> Any:
        """What this request shares with its response senders; made the first time."""
        with self._link.opening:
            if self._exchange is None:
                self._exchange = self._link.exchange(self._key, ended=self._ended)
            return self._exchange

    def _end(self) -> bool:
        """Reserve the right to send the last response; False if it was sent."""
        with self._link.opening:
            if self._exchange is None:
                self._ended = True
                return True
        return bool(self._exchange.end())

    def _leave(self) -> Any:
        """The outcome of a request without a response: a sender will answer it, it runs again, or
        its exchange reports that it was dropped."""
        exchange = self._begin_exchange()
        again = self._release == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
        return "again" if again and exchange.give_back() else None

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled, or the deadline has passed."""
        return self._link is not None and bool(self._begin_exchange().is_cancelled())

    def get_response_sender(self) -> InferenceResponseSender:
        if self._link is None:
            raise TritonModelException(
                "get_response_sender() is for the requests that execute() gets"
            )
        return InferenceResponseSender(self._begin_exchange())

    def set_release_flags(self, flags: int) -> None:
        """TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: execute() gets this request again."""
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"set_release_flags: unknown flags {flags!r}")
        self._release = flags

    # A request to another model

    def exec(self, decoupled: bool = False) -> Any:
        """Run the request on the server, batched with other callers'. Returns a response, or an
        iterator of responses if `decoupled`. Errors are in the response. Blocks."""
        call = self._call(decoupled)
        if decoupled:
            return call
        try:
            return call.only()
        finally:
            call.drop()

    def async_exec(self, decoupled: bool = False) -> Any:
        """Begin to run the request, and return a future of what `exec` returns, done when the first
        response is there. For `async def execute`. Cancelling the future cancels the request."""
        return self._call(decoupled).begun(decoupled)

    def __reduce__(self) -> Any:
        """For processes that the model forks: what the model's own process needs to run it."""
        names = ("_id", "_correlation_id", "_inputs", "_names", "_model", "_version", "_flags",
                 "_timeout", "_parameters", "_trace")  # fmt: skip
        return InferenceRequest._remade, ({name: getattr(self, name) for name in names},)

    @classmethod
    def _remade(cls, parts: dict[str, Any]) -> InferenceRequest:
        request = cls.__new__(cls)
        request.__dict__.update(parts)
        return request

    def _call(self, decoupled: bool) -> Any:
        if not self._model:
            raise TritonModelException("exec() needs a request with a model_name")
        return _the_server("exec()").call(self, decoupled)

    def __repr__(self) -> str:
        return f"<InferenceRequest {self._id or '?'}: {self._inputs}>"


class InferenceResponseSender:
    """Sends the responses of one request, from any thread and also after execute() has returned."""

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Send a response. The last one has TRITONSERVER_RESPONSE_COMPLETE_FINAL, which may also be
        sent alone."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(
                f"send() takes an InferenceResponse, not a {type(response).__name__}"
            )
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        self._exchange.send(response, bool(flags))

    def is_cancelled(self) -> bool:
        return bool(self._exchange.is_cancelled())


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Any:
    for tensor in inference_request.inputs():
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Any:
    for tensor in inference_response.output_tensors():
        if tensor._name == name:
            return tensor
    return None


def _parameters_text(parameters: Any, where: str) -> str:
    if parameters is None:
        return "{}"
    if not isinstance(parameters, dict):
        raise TritonModelException(f"{where}: parameters must be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"{where}: Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (str, int)):
            raise TritonModelException(
                f"{where}: Expect parameters values to have type bool/int/str, found type"
                f" {type(value)} for {key!r}"
            )
    return json.dumps(parameters)


# Configurations


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> Any:
    """The input of that name in a configuration (a dict), or None."""
    return next((one for one in model_config.get("input", ()) if one["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> Any:
    """The output of that name in a configuration (a dict), or None."""
    return next((one for one in model_config.get("output", ()) if one["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    policy = model_config.get("model_transaction_policy") or {}
    return bool(policy.get("decoupled", False))


class ModelConfig:
    """A configuration that auto_complete_config() completes. It must not contradict what is
    there."""

    def __init__(self, model_config: Any) -> None:
        self._model_config = (
            json.loads(model_config) if isinstance(model_config, (str, bytes)) else model_config
        )

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self._model_config
        return found

    def add_input(self, input: dict[str, Any]) -> None:
        """{"name": ..., "data_type": "TYPE_FP32", "dims": [...], "optional": False}"""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        """{"name": ..., "data_type": "TYPE_FP32", "dims": [...]}"""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_max_batch_size(self, max_batch_size: int) -> None:
        current = int(self._model_config.get("max_batch_size") or 0)
        if current > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {current}, but {self._where} specified"
                f" max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = int(max_batch_size)

    def set_dynamic_batching(self) -> None:
        for other in ("sequence_batching", "ensemble_scheduling"):
            if self._model_config.get(other) is not None:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but {self._where[3:]}"
                    " tries to set scheduling_choice as 'dynamic_batching'"
                )
        if self._model_config.get("dynamic_batching") is None:
            self._model_config["dynamic_batching"] = {}

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """{"decoupled": True}"""
        self._only(transaction_policy_dict, "model transaction property", ("decoupled",))
        policy = self._model_config.get("model_transaction_policy")
        if policy is None:
            policy = self._model_config["model_transaction_policy"] = {}
        if "decoupled" in transaction_policy_dict:
            decoupled = bool(transaction_policy_dict["decoupled"])
            if policy.setdefault("decoupled", decoupled) != decoupled:
                raise ValueError(
                    "trying to change decoupled property in auto-complete-config for model"
                    f" '{self._name}', which is already set to '{not decoupled}'."
                )

    @property
    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    @property
    def _where(self) -> str:
        return f"in auto-complete-config function for model '{self._name}'"

    def _only(self, members: dict[str, Any], what: str, known: tuple[str, ...]) -> None:
        for key in members:
            if key not in known:
                *others, last = [f"'{name}'" for name in known]
                names = f"{', '.join(others)} and {last}" if others else last
                raise ValueError(
                    f"{what} {self._where} contains property other than {names}. It has {key!r}."
                )

    def _add(self, kind: str, tensor: dict[str, Any], known: tuple[str, ...]) -> None:
        what = f"{kind} '{tensor['name']}'" if "name" in tensor else kind
        self._only(tensor, what, known)
        for key in ("name", "data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{what} {self._where} is missing '{key}' property.")
        tensors = self._model_config.setdefault(kind, [])
        for current in tensors:
            if current["name"] == tensor["name"]:
                self._agree(what, current, tensor)
                return
        tensors.append({**tensor, "dims": list(tensor["dims"])})

    def _agree(self, what: str, current: dict[str, Any], tensor: dict[str, Any]) -> None:
        """Complete a tensor of the configuration, which must not contradict the model's. One
        without `optional` does not."""
        kind = current.get("data_type") or "TYPE_INVALID"
        if kind not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {kind} for"
                f" {what}, model provides {tensor['data_type']}"
            )
        dims = [int(dim) for dim in tensor["dims"]]
        pairs: list[tuple[str, Any, Any]] = [
            ("dims", dims, [int(dim) for dim in current.get("dims") or dims])
        ]
        if current.get("optional"):
            pairs.append(("optional", tensor.get("optional", True), True))
        for key, provided, specified in pairs:
            if provided != specified:
                raise ValueError(
                    f"model '{self._name}', tensor '{tensor['name']}': the model expects {key}"
                    f" {provided} but the model configuration specifies {key} {specified}"
                )
        current.update(tensor, dims=dims)


# The server


def get_model_dir() -> str:
    return str(_the_server("get_model_dir()").model_dir)


def load_model(model_name: str, config: str = "", files: Any = None) -> None:
    """Load a model of the server's repository; `config` and `files` as in its load request (JSON
    text; {"file:1/model.onnx": bytes}). Blocks; raises TritonModelException."""
    content = dict(files or {})
    if config:
        content["config"] = config
    _the_server("load_model()").control("load", model_name, "", content)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    _the_server("unload_model()").control(
        "unload", model_name, "1" if unload_dependents else "", {}
    )


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    version = str(model_version or "")
    return bool(_the_server("is_model_ready()").control("ready", model_name, version, {}))


class _LogLevel(enum.IntEnum):
    INFO, WARNING, ERROR, VERBOSE = range(4)


class Logger:
    """Writes to the server's log, or to stderr without a server."""

    LogLevel = _LogLevel
    INFO, WARNING, ERROR, VERBOSE = _LogLevel

    @staticmethod
    def log(message: str, level: Any = _LogLevel.INFO) -> None:
        text = _text(message, "a message of the log")
        if not isinstance(level, _LogLevel):
            raise TypeError(f"level must be one of Logger's, such as Logger.INFO, not {level!r}")
        if _server is not None:
            _server.log(int(level), text)
        else:
            sys.stderr.write(f"{text}\n")

    @staticmethod
    def log_info(message: str) -> None:
        Logger.log(message, Logger.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        Logger.log(message, Logger.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        Logger.log(message, Logger.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        Logger.log(message, Logger.VERBOSE)


_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")


class Metric:
    """One metric of a family. Its value is on the server, shared by all instances."""

    def __init__(self, family: MetricFamily, labels: Any, buckets: Any) -> None:
        #: Weak: a deleted family's metrics cannot be used, as in Triton.
        self._family_of = weakref.ref(family)
        self._labels = sorted((str(key), str(value)) for key, value in (labels or {}).items())
        for key, _ in self._labels:
            if not _LABEL_NAME.match(key):
                raise TritonModelException(f"metric {family.name!r}: {key!r} is not a label")
        self._key = [family.name, family.description, family.kind, self._labels, buckets]
        if _server is not None:
            _server.outbox.measure([*self._key, "add", "0"])  # makes it visible

    def increment(self, value: float) -> None:
        family = self._check("increment", (MetricFamily.COUNTER, MetricFamily.GAUGE))
        if family.kind == MetricFamily.COUNTER and not float(value) >= 0:
            raise TritonModelException(f"a counter cannot be incremented by {value!r}")
        self._measure("add", value)

    def set(self, value: float) -> None:
        self._check("set", (MetricFamily.GAUGE,))
        self._measure("set", value)

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        self._check("observe", (MetricFamily.HISTOGRAM,))
        self._measure("observe", value)

    def value(self) -> float:
        """The value of a counter or gauge over all instances."""
        self._check("value", (MetricFamily.COUNTER, MetricFamily.GAUGE))
        return float(_the_server("value()").measured(self._key))

    def _check(self, what: str, kinds: tuple[int, ...]) -> MetricFamily:
        family = self._family_of()
        if family is None:
            raise TritonModelException(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted."
                f" Keep the family of metric {self._key[0]!r} as long as the metric."
            )
        if family.kind not in kinds:
            raise TritonModelException(
                f"metric {family.name!r}: a {family.kind_name} has no {what}()"
            )
        return family

    def _measure(self, what: str, value: float) -> None:
        if _server is not None:
            _server.outbox.measure([*self._key, what, repr(float(value))])


#: Aliases from early versions of Triton's module.
COUNTER, GAUGE, HISTOGRAM = 0, 1, 2


class MetricFamily:
    """Metrics of one name, which the server exposes with its own."""

    COUNTER, GAUGE, HISTOGRAM = COUNTER, GAUGE, HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        if kind not in (self.COUNTER, self.GAUGE, self.HISTOGRAM):
            raise TritonModelException(f"metric {name!r}: {kind!r} is not a kind")
        if not _METRIC_NAME.match(str(name)):
            raise TritonModelException(f"metric {name!r}: a name has letters, digits, _ and : only")
        self.name, self.description, self.kind = str(name), str(description), kind
        if _server is not None:
            first = _server.families.setdefault(self.name, (kind, self.description))
            if first[0] != kind:
                raise TritonModelException(f"metric {name!r} is there already, with another kind")
            self.description = first[1]

    @property
    def kind_name(self) -> str:
        return ("counter", "gauge", "histogram")[self.kind]

    def Metric(self, labels: Any = None, buckets: Any = None) -> Metric:
        """A metric with these labels; `buckets` are the bounds of a histogram."""
        if (self.kind == self.HISTOGRAM) != (buckets is not None):
            raise TritonModelException(
                f"metric {self.name!r}: a histogram needs buckets, others have none"
            )
        bounds = None if buckets is None else [float(bound) for bound in buckets]
        if bounds is not None and sorted(set(bounds)) != bounds:
            raise TritonModelException(f"metric {self.name!r}: buckets must grow")
        return Metric(self, labels, bounds)


def _the_server(what: str) -> Any:
    if _server is None:
        raise TritonModelException(f"{what} needs a server, and this process has none")
    return _server
