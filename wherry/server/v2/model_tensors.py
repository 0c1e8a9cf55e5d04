"""What is a decoded request, and which inputs and outputs may one to this model have?

The same for every protocol, in Triton's words. Made once for each loaded model.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from wherry.core.api import Column, Columns, InvalidRequest, LoadedModel, ModelConfig, Signature
from wherry.server.calls.call import RequestValues
from wherry.server.calls.parameters import Parameters
from wherry.server.content.urls import InputUrls
from wherry.server.v2.common import Common
from wherry.server.v2.input_codec import InputCodec
from wherry.server.v2.output_codec import OutputCodec
from wherry.server.v2.shared_memory import SharedMemory, Window


class RequestedOutput(msgspec.Struct):
    codec: OutputCodec
    #: Over HTTP: as binary data behind the JSON.
    binary: bool = False
    #: The number of "score:index" strings in its place; 0: the tensor itself.
    classes: int = 0
    #: The shared memory that its data goes to; None: into the answer.
    window: Window | None = None


class DecodedRequest(RequestValues):
    """A request as values, with the form of its answer."""

    #: How each output is to be sent; None: all, in the protocol's plain form.
    requested_outputs: list[RequestedOutput] | None = None
    #: Over gRPC: the client requested an empty last response at the end of a stream.
    empty_final_response: bool = False
    #: At a natural route: the client sent a list of rows.
    several: bool = False


def names_of(requested_outputs: list[RequestedOutput]) -> list[str]:
    return [one.codec.name for one in requested_outputs]


T = TypeVar("T")

#: How many names of tensors an error shows.
_MOST_NAMES: Final = 20
#: Batches that a request with more rows than one batch holds may run as. Each is a request to
#: the queue: more of them would hold up all others, and a row may be one byte of a body.
MAX_PARTS: Final = 2048


class ModelTensors:
    """A model's inputs and outputs by name. What a client gets wrong is an InvalidRequest.

    `labels` are the names of an output's classes, by output.
    """

    def __init__(
        self,
        config: ModelConfig,
        signature: Signature,
        labels: Mapping[str, Sequence[str]] | None = None,
        shared_memory: SharedMemory | None = None,
        urls: InputUrls | None = None,
        most_bytes: int = sys.maxsize,
    ) -> None:
        """At most `most_bytes` come from all URLs of a request."""
        self.urls = urls or InputUrls()
        self.most_bytes = most_bytes
        self.model = config.name
        self.version = config.version
        batched = self._batched = config.max_batch_size > 0
        self.most_rows = MAX_PARTS * max(1, config.max_batch_size)
        self.inputs = {
            spec.name: InputCodec(spec, config.name, batched=batched) for spec in signature.inputs
        }
        self.outputs = {
            spec.name: OutputCodec(spec, config.name, batched=batched) for spec in signature.outputs
        }
        self._labels = labels or {}
        self._shared_memory = shared_memory or SharedMemory()

    def input(self, name: str, datatype: str, columns: Columns) -> InputCodec:
        codec = self.inputs.get(name)
        if codec is None:
            raise self._unexpected("input", name, self.inputs)
        if datatype != codec.datatype:
            raise InvalidRequest(
                f"inference input '{name}' data-type is '{datatype}', but model"
                f" '{self.model}' expects '{codec.datatype}'"
            )
        if name in columns:
            raise InvalidRequest(f"input '{name}' already exists in request")
        return codec

    def rows(self, codec: InputCodec, shape: list[int], others: int) -> int:
        """The rows of an input; `others` are those of the inputs before it, 0 for the first."""
        rows = codec.rows_of(shape)
        if rows > self.most_rows:
            raise self._too_many(f"input '{codec.name}'", rows)
        if others and rows != others:
            raise InvalidRequest(
                f"input '{codec.name}' batch size does not match other inputs for '{self.model}'",
                more=f": {rows} rows, the others have {others}",
            )
        return rows

    def check_rows(self, rows: int) -> None:
        """Raise InvalidRequest if a request to this model cannot have this number of rows."""
        if rows > self.most_rows:
            raise self._too_many("the request", rows)
        if rows > 1 and not self._batched:
            raise InvalidRequest(
                f"model '{self.model}' takes one row in a request (max_batch_size is 0), not {rows}"
            )

    def _too_many(self, what: str, rows: int) -> InvalidRequest:
        return InvalidRequest(
            f"{what} has {rows} rows, and a request to model '{self.model}' at most"
            f" {self.most_rows} ({MAX_PARTS} batches of its max_batch_size); send several"
        )

    def complete(self, columns: Columns, others: Iterable[str] = ()) -> Columns:
        """Return the columns in the model's order, so that requests alike may share a batch.
        InvalidRequest if one is missing, with the `others` that the request has by name."""
        if len(columns) != len(self.inputs):
            self._check_missing(columns, others)
        return columns if len(columns) < 2 else in_order(self.inputs, columns)

    def _check_missing(self, columns: Columns, others: Iterable[str]) -> None:
        required = [name for name, codec in self.inputs.items() if not codec.spec.optional]
        missing = [name for name in required if name not in columns]
        if not missing:
            return
        expected = f"{len(required)} inputs"
        if len(required) < len(self.inputs):
            expected = f"number of inputs between {len(required)} and {len(self.inputs)}"
        raise InvalidRequest(
            f"expected {expected} but got {len(columns)} inputs for model '{self.model}'. Got"
            f" input(s) [{_quoted(columns)}], but missing required input(s) [{_quoted(missing)}]."
            " Please provide all required input(s).",
            more="".join(
                f" '{name[:100]}' is not an input." for name in itertools.islice(others, 3)
            ),
        )

    def output(self, name: str) -> OutputCodec:
        codec = self.outputs.get(name)
        if codec is None:
            raise self._unexpected("output", name, self.outputs)
        return codec

    def _unexpected(self, kind: str, name: str, known: Iterable[str]) -> InvalidRequest:
        named = ", ".join(f"'{one}'" for one in itertools.islice(known, _MOST_NAMES))
        return InvalidRequest(
            f"unexpected inference {kind} '{name}' for model '{self.model}'",
            more=f"; it has {named}",
        )

    def window(self, parameters: Parameters, what: str) -> Window:
        """The shared memory that an input's or output's parameters name."""
        region = parameters["shared_memory_region"]
        size = parameters.get("shared_memory_byte_size")
        offset = parameters.get("shared_memory_offset", 0)
        if type(region) is not str:
            raise InvalidRequest(f"{what}: parameter 'shared_memory_region' must be a string")
        if type(size) is not int or type(offset) is not int:
            raise InvalidRequest(
                f"{what}: parameters 'shared_memory_byte_size' (required with"
                " 'shared_memory_region') and 'shared_memory_offset' must be whole numbers of bytes"
            )
        return self._shared_memory.window(region, offset, size, what)

    def classified(
        self, codec: OutputCodec, column: Column, classes: int
    ) -> tuple[OutputCodec, Column]:
        """The best classes of each row in the output's place."""
        spec, texts = codec.classes(column, classes, self._labels.get(codec.name, ()))
        return OutputCodec(spec, self.model, batched=self._batched), texts


def tensors_of(loaded: LoadedModel, common: Common) -> ModelTensors:
    return ModelTensors(
        loaded.config,
        loaded.signature,
        loaded.model.output_labels,
        common.shared_memory,
        common.input_urls,
        common.max_body_bytes,
    )


def in_order(names: Mapping[str, object], values: Mapping[str, T]) -> dict[str, T]:
    return {name: values[name] for name in names if name in values}


def _quoted(names: Sequence[str] | Mapping[str, object]) -> str:
    return ",".join(f"'{name}'" for name in names)
