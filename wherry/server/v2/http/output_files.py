"""Which output of a model is sent as a file, as itself, and what is said of it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from wherry.core.api import Columns, FileBytes, FileSpec, Form, NotAcceptable, media_type_of
from wherry.server.content.media_types import (
    JSON,
    OCTET_STREAM,
    names_type,
    preferred,
    quoted,
)
from wherry.server.v2.http.answer_body import OutputFormat, TypedAnswer
from wherry.server.v2.model_tensors import ModelTensors

#: What a model gives is data: no browser runs it as a page of this server, or guesses its type.
SAFE: Final = (("Content-Security-Policy", "default-src 'none'; sandbox"),)
#: Types that a browser shows; it saves all others.
_SHOWN: Final = ("image/", "audio/", "video/")


class OutputFiles:
    """Chooses the form of a model's answers: JSON, or its only output of bytes as a file."""

    def __init__(self, tensors: ModelTensors) -> None:
        self._model = tensors.model
        files = [
            codec.spec
            for codec in tensors.outputs.values()
            if codec.spec.form is Form.BYTES and not codec.spec.shape
        ]
        #: The output that may be sent as a file.
        self.spec = files[0] if len(files) == 1 else None
        media = None if self.spec is None else self.spec.media
        self._type = media_type_of(media, None)
        #: Rows say themselves what they are.
        self._any_type = isinstance(media, FileSpec)
        #: The answer is nothing but a file that has a type.
        self._only = media is not None and len(tensors.outputs) == 1

    def output_format(self, accept: str | None, *, natural: bool = False) -> OutputFormat:
        """Choose by an Accept header. NotAcceptable if it takes nothing that there is.

        JSON is for those that say nothing or take anything, but at a natural route, if the answer
        is nothing but a file. Elsewhere Accept is for files alone: it was never looked at before.
        """
        if self.spec is None and not natural:
            return OutputFormat()
        offers = [*self._offered(accept, by_default=natural and self._only), JSON]
        found = preferred(accept, offers)
        json = preferred(accept, [JSON]) is not None
        if found is None and self._any_type:
            found = self._type  # the row may be of a type that is accepted
        if found is None:
            offers = offers if natural else [self._type, JSON]
            raise not_acceptable(self._model, accept or "", offers)
        if found == JSON:
            return OutputFormat()
        return OutputFormat(file=found, accept=accept, json=json)

    def _offered(self, accept: str | None, *, by_default: bool) -> list[str]:
        """The types of the file, if it may be the answer at all."""
        if self.spec is None:
            return []
        types = dict.fromkeys((self._type, OCTET_STREAM))
        named = [one for one in types if names_type(accept, one)]
        return named or ([self._type] if by_default else [])

    def answer(self, outputs: Columns, output_format: OutputFormat) -> TypedAnswer:
        """The file of an answer of one row. NotAcceptable if it is of a type that is not wanted."""
        assert self.spec is not None
        row, content_type = outputs[self.spec.name][0], output_format.file or OCTET_STREAM
        name = row.name if isinstance(row, FileBytes) else None
        if content_type == self._type:
            content_type = media_type_of(self.spec.media, row)
            if (
                content_type != self._type
                and preferred(output_format.accept, [content_type]) is None
            ):
                raise not_acceptable(self._model, output_format.accept or "", [content_type])
        data = row.encode() if isinstance(row, str) else row
        # A transport knows plain bytes alone, and views.
        body = data if type(data) is bytes else [memoryview(data)]
        return TypedAnswer(body, content_type, (*SAFE, disposition(content_type, name)))


def disposition(content_type: str, name: str | None) -> tuple[str, str]:
    """The header that has browsers show what cannot do harm, and save everything else."""
    shown = (
        content_type.startswith(_SHOWN) and "svg" not in content_type and "xml" not in content_type
    )
    kind = "inline" if shown else "attachment"
    return (
        "Content-Disposition",
        f"{kind}; filename*=UTF-8''{quote(name, safe='')}" if name else kind,
    )


def not_acceptable(model: str, accept: str, offers: Sequence[str]) -> NotAcceptable:
    return NotAcceptable(
        f"model '{model}' can answer as {' or '.join(offers)}, and Accept is {quoted(accept)}"
    )
