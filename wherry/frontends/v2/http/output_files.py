"""Which output of a model is sent as a file, as itself, and what is said of it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from wherry.frontends.content.media_types import (
    JSON,
    OCTET_STREAM,
    names_type,
    preferred,
    quoted,
)
from wherry.frontends.v2.http.answer_body import Asked, TypedAnswer
from wherry.frontends.v2.model_tensors import ModelTensors
from wherry.values.datatypes import Form
from wherry.values.errors import NotAcceptable
from wherry.values.request import Columns

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
        self.only = self.spec is not None and len(tensors.outputs) == 1

    def asked(self, accept: str | None, *, natural: bool = False) -> Asked:
        """Choose by an Accept header. NotAcceptable if it takes nothing that there is.

        JSON is for those that say nothing or take anything, but at a natural route, if the answer
        is nothing but a file. Elsewhere Accept is for files alone: it was never looked at before.
        """
        if self.spec is None and not natural:
            return Asked()
        offers = [JSON]
        if self.spec is not None and (file := self._offered(accept, natural)):
            offers.insert(0, file)
        found = preferred(accept, offers)
        if found is None:
            raise not_acceptable(self._model, accept or "", offers)
        return Asked(file=found != JSON, json=preferred(accept, [JSON]) is not None)

    def _offered(self, accept: str | None, natural: bool) -> str | None:
        """The type of the file, if it may be the answer at all."""
        file = OCTET_STREAM
        return file if names_type(accept, file) else None

    def answer(self, outputs: Columns) -> TypedAnswer:
        """The file of an answer of one row."""
        assert self.spec is not None
        row = outputs[self.spec.name][0]
        content_type = OCTET_STREAM
        body = row.encode() if isinstance(row, str) else bytes(row)
        return TypedAnswer(body, content_type, (*SAFE, disposition(content_type, None)))


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
