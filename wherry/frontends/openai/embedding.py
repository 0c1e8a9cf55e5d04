"""How do numbers that a model makes of texts go out: as vectors, or of any shape?"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from wherry.frontends.http.answers import request_id_of
from wherry.frontends.offload import give_way
from wherry.frontends.openai.encodings import encoded
from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.beside import HINTS
from wherry.frontends.openai.fields.embeddings import (
    EmbedRequest,
    EncodedRequest,
    PoolingRequest,
    PoolingTask,
)
from wherry.frontends.openai.fits import NumbersFit, class_fit, numbers_fit, vector_fit
from wherry.frontends.openai.numbers_call import Numbers, NumbersCall, Rows
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.request import Columns, InferResponse

#: Rows written between two pauses, which takes some milliseconds.
ROWS_AT_ONCE: Final = 16
#: Bytes of the header that says where each row is: clients refuse longer ones.
MOST_METADATA: Final = 32_000


class VectorsCall(NumbersCall):
    """Rows of which a model makes a vector each, or numbers of another shape."""

    done = NumbersCall.done | {"use_activation", "normalize"}

    def __init__(
        self,
        entry: HttpEntry,
        loaded: LoadedModel,
        wanted: EncodedRequest | EmbedRequest,
        fit: NumbersFit | None = None,
    ) -> None:
        fit = fit or vector_fit(loaded.signature)
        assert fit is not None
        super().__init__(entry, loaded, wanted, fit)
        self._wants = wanted
        #: Whether vectors are brought to length 1 here.
        self._to_one = False

    def columns(self) -> tuple[Columns, int]:
        name, shape, wanted = self._loaded.name, self._fit.numbers.shape, self._wants
        if wanted.width is not None:
            if len(shape) != 1:
                raise BadField(wanted.width_field, f"the model '{name}' makes no vectors")
            if 0 <= shape[0] < wanted.width:
                raise BadField(wanted.width_field, f"the model '{name}' has {shape[0]}")
        for field in ("use_activation", "normalize"):
            value = getattr(wanted, field, None)
            if value is None or self._loaded.signature.input(field) is not None:
                continue
            if not value:
                problem = f"the model '{name}' has no other numbers than those that it tells"
                raise BadField(field, problem)
            self._to_one = True
        return super().columns()

    def numbers(self, response: InferResponse) -> Rows:
        """The first numbers of each vector, of length 1, as OpenAI shortens them."""
        rows, wanted = super().numbers(response), self._wants.width
        if wanted is not None and isinstance(rows, np.ndarray):
            width = rows.shape[1]
            if wanted > width:
                problem = f"the model '{self._loaded.name}' has {width}"
                raise BadField(self._wants.width_field, problem)
            if wanted < width:
                return of_length_one(np.ascontiguousarray(rows[:, :wanted]))
        return [of_length_one(row) for row in rows] if self._to_one else rows


class EncodedCall(VectorsCall):
    """Numbers as JSON, as base64 in JSON, or as nothing but numbers."""

    #: What a row is called, the member that has its numbers, and how ids begin.
    kind: str
    member: str
    prefix: str

    def __init__(
        self,
        entry: HttpEntry,
        loaded: LoadedModel,
        wanted: EncodedRequest,
        fit: NumbersFit | None = None,
    ) -> None:
        super().__init__(entry, loaded, wanted, fit)
        self._form = wanted.encoding_format or "float"
        self._dtype = wanted.embed_dtype or "float32"
        self._endianness = wanted.endianness or "native"

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        rows = self.numbers(response)
        about = {
            "model": self.model_name,
            "usage": self.usage(response, self._tokens),
            "id": f"{self.prefix}-{request_id_of(self._exchange)}",
            "created": int(time.time()),
        }
        if self._form.startswith("bytes"):
            return self._bytes(rows, about)
        if self._form == "float":
            self.check_finite(rows)
        parts: list[Buffer] = [msgspec.json.encode({"object": "list", **about})[:-1], b',"data":[']
        for index, row in enumerate(rows):
            one = {"object": self.kind, "index": index, self.member: self._told(row)}
            parts += [b"," if index else b"", msgspec.json.encode(one)]
            if not index % ROWS_AT_ONCE:
                give_way()
        return [*parts, b"]}"]

    def _told(self, row: Numbers) -> Any:
        if self._form == "float":
            return row.tolist()
        return base64.b64encode(encoded(row, self._dtype, self._endianness)).decode()

    def _bytes(self, rows: Rows, about: dict[str, Any]) -> Sequence[Buffer]:
        """The rows end to end, and the header that says where each is."""
        self.media_type = "application/octet-stream"
        parts = [encoded(row, self._dtype, self._endianness) for row in rows]
        if self._form == "bytes":
            items: list[dict[str, Any]] = []
            start = 0
            for index, (row, part) in enumerate(zip(rows, parts, strict=True)):
                end = start + len(part)
                form = {"embed_dtype": self._dtype, "endianness": self._endianness}
                place = {"start": start, "end": end, "shape": row.shape}
                items.append({"index": index, **form, **place})
                start = end
            metadata = json.dumps({**about, "data": items})
            if len(metadata) > MOST_METADATA:
                problem = f"a header cannot tell of {len(rows)} rows: send bytes_only"
                raise BadField("encoding_format", problem)
            self.headers = (("metadata", metadata),)
        return parts


class Embedding(EncodedCall):
    """Vectors in OpenAI's words."""

    operation = "embeddings"
    kind = member = "embedding"
    prefix = "embd"


class Pooling(EncodedCall):
    """Numbers of any shape, in vLLM's words."""

    operation = "pooling"
    kind, member, prefix = "pooling", "data", "pool"

    def __init__(self, entry: HttpEntry, loaded: LoadedModel, wanted: PoolingRequest) -> None:
        fit = numbers_fit(loaded.signature)
        assert fit is not None
        if wanted.task is not None and wanted.task not in tasks_of(loaded):
            shape = list(fit.numbers.shape)
            problem = f"the model '{loaded.name}' does not support {wanted.task!r}: it makes"
            raise BadField("task", f"{problem} numbers of shape {shape} of a text")
        super().__init__(entry, loaded, wanted, fit)


class Embed(VectorsCall):
    """Vectors in Cohere's words: all of each type together."""

    operation = "embeddings"
    done = VectorsCall.done.union(HINTS)

    def __init__(self, entry: HttpEntry, loaded: LoadedModel, wanted: EmbedRequest) -> None:
        super().__init__(entry, loaded, wanted)
        self._wanted = wanted

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        vectors, types = self.numbers(response), self._wanted.types()
        width = len(vectors[0])
        if width % 8 and {"binary", "ubinary"}.intersection(types):
            problem = f"binary needs a multiple of 8 numbers, and there are {width}"
            raise BadField("embedding_types", problem)
        if "float" in types:
            self.check_finite(vectors)
        units = {"input_tokens": self.usage(response)["prompt_tokens"], "image_tokens": 0}
        about = {
            "id": f"embd-{request_id_of(self._exchange)}",
            "texts": self._wanted.texts,
            "response_type": "embeddings_by_type",
            "meta": {"api_version": {"version": "2"}, "billed_units": units},
        }
        parts: list[Buffer] = [msgspec.json.encode(about)[:-1], b',"embeddings":{']
        for place, kind in enumerate(types):
            parts += [b"," if place else b"", f'"{kind}":['.encode()]
            for index, vector in enumerate(vectors):
                parts += [b"," if index else b"", msgspec.json.encode(_TOLD[kind](vector))]
                if not index % ROWS_AT_ONCE:
                    give_way()
            parts.append(b"]")
        return [*parts, b"}}"]


def tasks_of(loaded: LoadedModel) -> list[PoolingTask]:
    """Of which kinds a model's numbers are."""
    fit, signature = numbers_fit(loaded.signature), loaded.signature
    tasks: list[PoolingTask] = []
    if vector_fit(signature) is not None:
        tasks.append("embed")
    if class_fit(signature, loaded.model.output_labels) is not None:
        tasks.append("classify")
    if fit is not None and len(fit.numbers.shape) == 2:
        tasks += ["token_embed", "token_classify"]
    return tasks


def of_length_one(vectors: Numbers) -> Numbers:
    """Vectors, the last dimension each, of length 1; one of zeros stays."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    made: Numbers = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return made


def _bits(vector: Numbers) -> Any:
    """Eight numbers a byte, the first its highest bit: 1 where a number is not negative."""
    return np.packbits(vector >= 0)


_TOLD: Final[dict[str, Callable[[Numbers], Any]]] = {
    "float": np.ndarray.tolist,
    "base64": lambda vector: base64.b64encode(vector.tobytes()).decode(),
    "binary": lambda vector: (_bits(vector).astype(np.int16) - 128).tolist(),
    "ubinary": lambda vector: _bits(vector).tolist(),
}
