"""What bytes do the fields of a ModelInferResponse have?

Most answers of a model are alike but for their data, so what is the same is encoded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wherry.server.grpc.wire import Message, Values
from wherry.server.grpc.wire_numbers import varint

#: Descriptions of outputs that are remembered at most, and the dimensions of one.
MOST_OUTPUTS: Final = 256
MOST_DIMENSIONS: Final = 16


class AnswerFields:
    """Encodes the fields of one model's answers, but for the data itself."""

    def __init__(self, kind: Message, model: str, version: str) -> None:
        """`kind` is the ModelInferResponse."""
        self._kind = kind
        #: The first fields: the model's name and version.
        self.begin = kind.encode({"model_name": model, "model_version": version})
        self._tag_of_id = varint(kind.tag("id"))
        tag_of_raw = self._tag_of_raw = varint(kind.tag("raw_output_contents"))
        self._short_raw = [tag_of_raw + varint(size) for size in range(0x80)]
        self._outputs: dict[tuple[object, ...], bytes] = {}

    def id(self, id: str) -> bytes:
        data = id.encode(errors="replace")
        return self._tag_of_id + varint(len(data)) + data

    def parameters(self, parameters: Mapping[str, Values]) -> bytes:
        return self._kind.encode({"parameters": parameters})

    def output(self, name: str, datatype: str, shape: list[int]) -> bytes:
        """The description of an output, without its data."""
        key = (name, datatype, *shape)
        known = self._outputs.get(key)
        if known is None:
            described = {"name": name, "datatype": datatype, "shape": shape}
            known = self._kind.encode({"outputs": [described]})
            if len(shape) <= MOST_DIMENSIONS:
                if len(self._outputs) >= MOST_OUTPUTS:
                    self._outputs.clear()
                self._outputs[key] = known
        return known

    def raw_head(self, size: int) -> bytes:
        """What stands before the data of an output, of `size` bytes."""
        return self._short_raw[size] if size < 0x80 else self._tag_of_raw + varint(size)
