"""What does a front know of a model that another process runs?

A front imports no code of the user: it has the configuration and the signature as the owner has
told them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import msgspec

from wherry.core.api import (
    DATATYPES,
    AudioSpec,
    FileSpec,
    Form,
    ImageSpec,
    MediaSpec,
    Model,
    ModelConfig,
    Signature,
    TensorSpec,
)
from wherry.server.remote.link_protocol import ModelCard, SpecCard

_MEDIA: Final[dict[str, type[MediaSpec]]] = {
    "image": ImageSpec, "audio": AudioSpec, "file": FileSpec
}  # fmt: skip


class RemoteModel(Model):
    """A model of a front's runtime. Its code runs elsewhere."""

    def __init__(self, card: ModelCard) -> None:
        self._config = card.config
        self._signature = signature_of(card)
        self.output_labels = card.labels
        self._variable_strings = card.variable_strings
        self.calls_others = card.calls_others
        self.is_ensemble = card.is_ensemble

    @property
    def variable_strings(self) -> list[str]:
        return self._variable_strings

    def config(self, **overrides: Any) -> ModelConfig:
        return replace(self._config, **overrides)

    def signature(self, name: str = "") -> Signature:
        return self._signature


def card_of(number: int, model: Model, config: ModelConfig, signature: Signature) -> ModelCard:
    """What a front must know of a loaded version, which messages call `number`.

    The limits of memory and the samples stay with the owner.
    """
    return ModelCard(
        number,
        replace(config, max_queue_bytes=None, response_cache=False, warmup=(), examples=()),
        [_spec_card(spec) for spec in signature.inputs],
        [_spec_card(spec) for spec in signature.outputs],
        signature.row_wise,
        signature.streams,
        signature.is_async,
        signature.returns,
        {name: list(labels) for name, labels in model.output_labels.items()},
        list(model.variable_strings),
        model.calls_others,
        model.is_ensemble,
    )


def signature_of(card: ModelCard) -> Signature:
    return Signature(
        tuple(map(_spec, card.inputs)),
        tuple(map(_spec, card.outputs)),
        card.row_wise,
        card.streams,
        card.is_async,
        card.returns,
    )


def shaped_strings(specs: Sequence[TensorSpec]) -> list[str]:
    """The names of those whose columns may hold strings with a shape of their own."""
    return [spec.name for spec in specs if spec.shape and spec.form in (Form.TEXT, Form.BYTES)]


def _spec_card(spec: TensorSpec) -> SpecCard:
    return SpecCard(
        spec.name,
        spec.datatype.name,
        spec.shape,
        spec.form,
        spec.optional,
        spec.holds_lists,
        None if spec.media is None else (spec.media.kind, asdict(spec.media)),
    )


def _spec(card: SpecCard) -> TensorSpec:
    return TensorSpec(
        card.name,
        DATATYPES[card.datatype],
        card.shape,
        card.form,
        card.optional,
        list if card.json_list else None,
        None if card.media is None else msgspec.convert(card.media[1], _MEDIA[card.media[0]]),
    )
